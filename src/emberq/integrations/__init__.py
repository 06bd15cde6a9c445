"""emberq in other frameworks. Public are `celery` and what docs/CELERY.md says of it; the rest is internal.

celery           the transport of Kombu behind `broker_url = "nsq://..."` (extra `celery`)
kombu_client     the NSQ client of one Kombu connection
"""
