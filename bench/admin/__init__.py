"""Measures nsqadmin on a cluster of 1,000 topics and 80 nodes, which is only acted.

simulated_cluster   the cluster: an nsqlookupd and 80 nsqds with answers that are ready
nsqadmin            the nsqadmin that is measured
measurement         what is asked of it, and how long it takes
browser             the same for its pages, in Chromium
__main__            `python -m bench.admin`: starts both, prints the figures
"""
