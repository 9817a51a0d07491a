"""REST: budgets, to read and to set."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Budget
from billing.services.budgets import change_budget, create_budget, remove_budget
from events.errors import NotThere
from tenants.policy import require, visible
from tenants.selectors import team_named
from wire.fields import Flag, Moment, Money, Price, Text, Whole
from wire.pages import Listing, PageQuery, page_answer, paged
from wire.strict import Strict
from wire.views import ApiView

BUDGETS = Listing[Budget]({"id": "id"}, default="id")
MOST_THRESHOLDS = 20


class BudgetSerializer(serializers.ModelSerializer):
    """What the team and all below it may spend in each period. ``spent``: in the present one, as of ``looked_at``;
    ``held``: jobs that wait are held because it is spent, those that run go on."""

    team = serializers.CharField(source="team.slug")
    amount = Price()
    thresholds = serializers.ListField(child=serializers.IntegerField())
    starts_at = Moment(allow_null=True)
    ends_at = Moment(allow_null=True)
    spent = Money()
    held = serializers.BooleanField(source="holds_now")
    looked_at = Moment(allow_null=True)
    updated_at = Moment()

    class Meta:
        model = Budget
        fields = (
            *("id", "team", "amount", "period", "action", "thresholds", "starts_at", "ends_at", "active"),
            *("spent", "held", "looked_at", "updated_at"),
        )


class BudgetChange(Strict):
    """What is named is as given; the rest stays. ``hold``: once all is spent, jobs that wait are held."""

    amount = Price(required=False)
    period = serializers.ChoiceField(Budget.Period.choices, required=False)
    action = serializers.ChoiceField(Budget.Action.choices, required=False)
    thresholds = serializers.ListField(
        child=Whole(min_value=1, max_value=1000),
        required=False,
        max_length=MOST_THRESHOLDS,
        help_text="percent of the amount at which an event tells of it, once a period",
    )
    starts_at = Moment(required=False, allow_null=True)
    ends_at = Moment(required=False, allow_null=True)
    active = Flag(required=False)


class BudgetRequest(BudgetChange):
    """A new budget; a month's that warns, where nothing else is said."""

    team = Text(max_length=63)
    amount = Price()


class BudgetQuery(PageQuery):
    team = Text(required=False, max_length=63)


class Budgets(ApiView):
    queries = {"GET": BudgetQuery}

    @extend_schema(operation_id="budgets", parameters=[BudgetQuery], responses=paged(BudgetSerializer))
    def get(self, request: Request) -> Response:
        """Budgets of the teams that one may see."""
        budgets = Budget.objects.filter(visible(request.user)).select_related("team")
        if "team" in self.query:
            budgets = budgets.filter(team=team_named(request.user, self.query["team"]))
        rows, following = BUDGETS.page(budgets, request, self.query)
        return page_answer(BudgetSerializer(rows, many=True).data, following)

    @extend_schema(operation_id="create_budget", request=BudgetRequest, responses={201: BudgetSerializer})
    def post(self, request: Request) -> Response:
        """A new budget, by a manager of the team above or an operator. What is spent already counts, at once."""
        asked: dict[str, Any] = BudgetRequest.read_body(self.body())
        team = team_named(request.user, asked.pop("team"))
        require(request.user, "quota.edit", team.pk, what="budget")
        budget = create_budget(team, asked.pop("amount"), self.now, actor_id=request.user.pk, **asked)
        return Response(BudgetSerializer(budget).data, status=201)


class OneBudget(ApiView):
    @extend_schema(operation_id="budget", responses=BudgetSerializer)
    def get(self, request: Request, budget_id: int) -> Response:
        """One budget."""
        return Response(BudgetSerializer(_budget(request, budget_id)).data)

    @extend_schema(operation_id="change_budget", request=BudgetChange, responses=BudgetSerializer)
    def patch(self, request: Request, budget_id: int) -> Response:
        """What is named is as given; jobs that it held and need not any more are released at once."""
        budget = _editable(request, budget_id)
        asked: dict[str, Any] = BudgetChange.read_body(self.body())
        return Response(BudgetSerializer(change_budget(budget, self.now, actor_id=request.user.pk, **asked)).data)

    @extend_schema(operation_id="remove_budget", responses={204: None})
    def delete(self, request: Request, budget_id: int) -> Response:
        """The budget is gone; jobs that it alone held are released at once."""
        remove_budget(_editable(request, budget_id), self.now, actor_id=request.user.pk)
        return Response(status=204)


def _budget(request: Request, budget_id: int) -> Budget:
    found = Budget.objects.filter(visible(request.user), pk=budget_id).select_related("team").first()
    if found is None:
        raise NotThere("There is no such budget, or you may not see it.")
    return found


def _editable(request: Request, budget_id: int) -> Budget:
    found = _budget(request, budget_id)
    require(request.user, "quota.edit", found.team_id, what="budget")
    return found
