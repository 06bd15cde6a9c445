"""nsqadmin: the cluster as people see it and act on it. Internal: no part of the public API (docs/API.md).

options     every setting of nsqadmin
daemon      what there is, and in which order it starts and stops
routes      every path, who may ask, and the headers that protect a browser
access/     who asks, and what they may do: users, sessions, the gate
api/        the JSON under /api, login and /config
live        one loop that looks at the cluster for all browsers; server-sent events
document    figures as the API and the live views word them
absence     nodes that are silent or gone, and what they held
history     figures since nsqadmin started
audit       what is told of every action: the log and notifications
web/        the pages, and the files they need
"""
