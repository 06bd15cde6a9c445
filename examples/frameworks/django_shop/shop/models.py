"""What the shop remembers."""

from django.db import models


class Order(models.Model):
    """An order, and whether its bill has been written."""

    amount = models.IntegerField()
    is_billed = models.BooleanField(default=False)
