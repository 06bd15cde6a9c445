"""What nsqadmin, nsq_stat and `emberq top` know of a cluster.

upstream     asks many daemons at once; what is made of those that fail
document     reads their JSON, of any version
version      which of two versions is the older
producer     an nsqd as nsqlookupd, or it itself, describes it
topology     who is there: topics, producers, nodes
latency      end-to-end percentiles, and their sum over nodes
stats        topics, channels and clients, on one node or over all
stats_document  the same read from an nsqd's answer
aggregate    one node's figures added to the next's
statistics   gathers figures over the cluster
action       changes the cluster: create, delete, pause, empty, tombstone
pipeline_feed  Spark queries, as they report themselves to a topic
"""
