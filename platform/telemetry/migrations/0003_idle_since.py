from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0002_initial")]

    operations = [
        migrations.AddField(
            model_name="taskreading",
            name="idle_since",
            field=models.DateTimeField(
                blank=True,
                help_text="since when every reading of it shows no use, without a gap; kept where the pool ends idle jobs",
                null=True,
            ),
        ),
    ]
