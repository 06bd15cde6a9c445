"""nsqd's HTTP API: one module per noun, one table of routes.

    routes     every path, and the listeners they are answered on
    argument   what a request names: topic, channel, place in a journal; wording of refusals
    publish    /pub, /mpub
    channel    topics and channels: create, delete, empty, pause, peek, seek
    policy     /channel/policy, /channel/redrive: dead letters
    journal    /journal, /journal/read, /topic/peek
    stats      /stats: report, JSON, text
    node       the node itself: /ping, /info, /config, /debug

Handlers are synchronous and run inside the event loop's turn that brought the request, except those that have to wait
(profiles, long polls, what must reach the disk before it is answered). They refuse by raising HttpError. The order of
their checks is part of the API, because clients see which complaint comes first.

Internal: no part of the public API (docs/API.md).
"""
