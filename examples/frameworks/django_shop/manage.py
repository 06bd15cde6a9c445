"""A Django project that publishes orders and bills them in a process of its own.

    python manage.py migrate --run-syncdb
    python manage.py runserver
    python manage.py bill_orders              # the consumer: as many of them as you like

NSQD is the address of an nsqd, 127.0.0.1:4150 unless it is set.
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
