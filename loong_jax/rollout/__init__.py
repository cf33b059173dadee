"""From prompts and weights to rollouts.

    engine, slot_engine      the contract of what draws tokens; the engine on dense slots
    paged_engine, pages      the engine whose slots share a pool of pages
    draw, slots              one random stream per sample; what the slots of an engine hold
    replica, local_replicas  continuous batching under one policy version; replicas in threads
    hosted_replicas          the same replicas in other processes, of this machine or of Ray
    partial                  what is written of a ticket, for when its replica dies
    versions, publisher      the living policy versions; how one reaches other processes
    buffer                   groups on their way to training, and the ledger of all tickets
    sampling                 many problems to the end, for evaluation
    records, events, plain   tickets, groups, rollouts; what replicas report; JSON and arrays

Importing the package itself imports nothing, so that processes without JAX may use the records.
"""
