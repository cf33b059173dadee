"""From prompts and weights to rollouts.

    records                  tickets, groups, rollouts, what replicas report; their form as bytes
    engine_config            settings of engines and of samples
    slot_engine              the engine on dense slots
    programs, slots          its compiled programs; contents of slots, and sampling of tokens
    devices                  where its arrays lie: on one device, or on a mesh
    attempts, slot_table     samples on their way; which have slots, and which queues
    replica, local_replicas  continuous batching under one policy version; replicas in threads
    versions                 the living policy versions
    sampling                 many problems to the end, for evaluation

What some configurations need besides:

    pages, paged_engine, speculation                      pages, drafts
    hosts, hosted_replicas, publishing                    replicas in other processes
    agentic, serving, jetstream                           tools; servers; JetStream's contract
    reuse                                                 groups that are trained on again

Importing the package itself imports nothing, so that processes without JAX may use the records.

Knows: checksums, data, errors, logs, models, problems, sandbox, sharding, verifiers.
"""
