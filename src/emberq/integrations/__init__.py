"""emberq in other frameworks. Public are `celery`, as docs/CELERY.md has it, and `faststream`; the rest is internal.

celery           the transport of Kombu behind `broker_url = "nsq://..."` (extra `celery`)
kombu_client     the NSQ client of one Kombu connection
faststream       a broker for FastStream's applications (extra `faststream`)
"""
