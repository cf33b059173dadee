"""The page a run leaves behind, the charts on it, and the logs they are drawn from.

`page.write_report` writes a run's page and summary, `page.write_controls` the page that sets
controls beside it; while a run goes, `metrics_log.MetricsLog`, `progress.Progress` and
`usage.MemoryMonitor` write, show and measure.

Knows: configs, data, errors, problems, process, rollout.
"""
