"""Taking orders."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.nsq import producer


@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """Store the order, and publish it once it is committed: before that, a consumer would not find it."""
    with transaction.atomic():
        order = Order.objects.create(amount=json.loads(request.body)["amount"])
        transaction.on_commit(lambda: producer().publish("orders", json.dumps({"id": order.pk}).encode()))
    return JsonResponse({"accepted": order.pk}, status=202)
