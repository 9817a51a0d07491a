from django.urls import path

from scheduling.views import job, jobs, new_job

urlpatterns = [
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/stop", jobs.stop_jobs, name="jobs-stop"),
    path("jobs/new/", new_job.new_job, name="job-new"),
    path("jobs/<int:job_id>/", job.job, name="job"),
    path("jobs/<int:job_id>/row", jobs.job_row, name="job-row"),
    path("jobs/<int:job_id>/cancel", job.cancel, name="job-cancel"),
    path("jobs/<int:job_id>/hold", job.hold, name="job-hold"),
    path("jobs/<int:job_id>/release", job.release, name="job-release"),
]
