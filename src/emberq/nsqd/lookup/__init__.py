"""How nsqd keeps the nsqlookupds informed, and what it learns from them.

protocol        the bytes of nsqlookupd's V1 protocol
conversation    one connection's commands and answers, without I/O
peer            one nsqlookupd: connecting, deadlines, reconnecting
link            all nsqlookupds: what exists here is registered there
precreation     a new topic starts with the channels that the nsqlookupds know
discovery       both as the daemon has them, made from its options
"""
