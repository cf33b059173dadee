"""The methods of fusion, one table. A new one is a module and a line here."""

from loong_jax.merge.methods import fisher, longcat, means, selecting, sphere, thinning, trimming
from loong_jax.merge.methods.method import Method

METHODS: dict[str, type[Method]] = {  # by name on the command line
    "longcat": longcat.LongcatFusion,
    "linear": means.Linear,
    "task-arithmetic": means.TaskArithmetic,
    "ties": trimming.Ties,
    "dare": thinning.Dare,
    "della": thinning.Della,
    "breadcrumbs": trimming.Breadcrumbs,
    "sce": selecting.Sce,
    "ram": selecting.Ram,
    "slerp": sphere.Slerp,
    "nuslerp": sphere.NuSlerp,
    "karcher": sphere.Karcher,
    "fisher": fisher.Fisher,
    "fisher-deltas": fisher.FisherDeltas,
}
