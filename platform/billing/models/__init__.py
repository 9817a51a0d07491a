"""What it costs: rates and usage, budgets, packages, plans and invoices. Money is Decimal, in one currency."""

from billing.models.budgets import Budget, BudgetCrossing
from billing.models.capacity import CapacityChange
from billing.models.invoices import Invoice, InvoicedRecord, InvoiceLine, InvoiceSequence
from billing.models.packages import Package, PackageDraw
from billing.models.plans import Plan, TeamPlan
from billing.models.usage import Rate, UsageRecord

__all__ = [
    "Budget",
    "BudgetCrossing",
    "CapacityChange",
    "Invoice",
    "InvoiceLine",
    "InvoiceSequence",
    "InvoicedRecord",
    "Package",
    "PackageDraw",
    "Plan",
    "Rate",
    "TeamPlan",
    "UsageRecord",
]
