from django.urls import path

from tenants import views

urlpatterns = [
    path("sign-in", views.SignIn.as_view(), name="sign-in"),
    path("sign-out", views.sign_out, name="sign-out"),
]
