"""Retention: when a job's result was purged, and when a source's retention was carried out."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("sources", sa.Column("purged_at", TIME, nullable=True))
    op.add_column("jobs", sa.Column("purged_at", TIME, nullable=True))
    if op.get_bind().dialect.name == "sqlite":
        # It gives a deleted row's number to the next one, and old leases carry it: the table is made anew.
        op.drop_index("ix_jobs_claim", "jobs")  # descending, which is lost on the way
        with op.batch_alter_table("jobs", recreate="always", table_kwargs={"sqlite_autoincrement": True}):
            pass
        op.create_index("ix_jobs_claim", "jobs", ["state", sa.text("priority DESC"), "id"])


def downgrade() -> None:
    op.drop_column("sources", "purged_at")
    op.drop_column("jobs", "purged_at")
