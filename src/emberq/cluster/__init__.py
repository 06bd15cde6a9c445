"""A cluster as nsqadmin, nsq_stat and `emberq top` know it. Internal: no part of the public API (docs/API.md).

cluster          Cluster: all that can be asked of one and done to it, behind one door
upstream         asking many daemons at once; reading their JSON; the thread for what takes long; the ClusterError tree
topology         which nsqds, topics and versions there are
stats            figures of topics, channels and clients, on one node or over several
node_stats       one nsqd's /stats, in columns
survey           one look at everything, sums and rates included
action           create, delete, pause, empty, tombstone; peek
pipeline_feed    Spark queries as they report themselves
"""
