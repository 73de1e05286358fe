"""Measures commits on many GPUs and machines by Dask: `kernelwatch bench --cluster`. Nothing else imports Dask.

A job is one commit and some suites on one worker. The worker has a clone of its own, made from packs of git, in which
asv measures as on a single machine; the result files come back as bytes, and only the process that the user started
writes them. `units` is what there is to measure, `schedule` who measures what, `dispatch` the loop that hands out jobs,
`remote` and `node` what runs on a worker, `local` a cluster on this machine.
"""
