"""Exports: what has been exported, under which name, and in which files."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "exports",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("rounds", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exports")),
        sa.UniqueConstraint("name", name=op.f("uq_exports_name")),
    )
    op.create_table(
        "exported_jobs",
        sa.Column("export_id", ID, nullable=False),
        sa.Column("job_id", ID, autoincrement=False, nullable=False),
        sa.Column("finished_at", TIME, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["export_id"], ["exports.id"], name=op.f("fk_exported_jobs_export_id")),
        sa.PrimaryKeyConstraint("export_id", "job_id", name=op.f("pk_exported_jobs")),
    )
    with op.batch_alter_table("exported_jobs", schema=None) as batch_op:
        batch_op.create_index("ix_exported_jobs_part", ["export_id", "round", "part"], unique=False)
    op.create_table(
        "export_parts",
        sa.Column("export_id", ID, nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("part", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("urls", sa.JSON(), nullable=True),
        sa.Column("segments", sa.Integer(), nullable=True),
        sa.Column("written_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["export_id"], ["exports.id"], name=op.f("fk_export_parts_export_id")),
        sa.PrimaryKeyConstraint("export_id", "round", "part", name=op.f("pk_export_parts")),
    )


def downgrade() -> None:
    for table in ("export_parts", "exported_jobs", "exports"):
        op.drop_table(table)
