"""What nsqadmin, nsq_stat and `emberq top` know of a cluster.

upstream        asks many daemons at once; what is made of those that fail
background      a thread for what takes long to reckon
document        reads their JSON, of any version
version         which of two versions is the older
producer        an nsqd as nsqlookupd, or it itself, describes it
topology        who is there: topics, producers, nodes
latency         end-to-end percentiles, and their sum over nodes
stats           a topic, a channel, a client, on one node or over all
client_sieve    the few of very many clients that are to be shown
stats_document  the same read from an nsqd's answer
aggregate       one node's part of a topic or a channel added to the next's
node_figures    all topics and channels of a node, in columns
rate            messages per second, from two looks
tally           adds up the figures of nodes
survey          the whole cluster at one time
observer        gathers all of these over the cluster
action          changes the cluster: create, delete, pause, empty, tombstone
peek            looks at messages that wait
pipeline_feed   Spark queries, as they report themselves to a topic
"""
