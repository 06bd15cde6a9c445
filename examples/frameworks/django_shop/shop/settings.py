"""Settings of the example; those of a real project have more in them."""

import os
from pathlib import Path

SECRET_KEY = "an example has nothing to hide"  # noqa: S105
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop"]
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", str(Path(__file__).parents[1] / "shop.sqlite3")),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
