"""Drop folders: sources, the ledger of what arrived, errands at a job's end, buckets that refuse."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "buckets",
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("refusals", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rest_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("bucket", name=op.f("pk_buckets")),
    )
    op.create_table(
        "sources",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("listed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refusals", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rest_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('active', 'paused', 'ad_hoc', 'removed')", name=op.f("ck_sources_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sources")),
        sa.UniqueConstraint("name", name=op.f("uq_sources_name")),
    )
    with op.batch_alter_table("sources", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sources_url"), ["url"], unique=False)

    op.create_table(
        "arrivals",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("source_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("modified_s", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default="held", nullable=False),
        sa.Column("overtaken", sa.Integer(), server_default="0", nullable=False),
        sa.Column("sidecar", sa.JSON(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("admitted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('held', 'submitted', 'ended')", name=op.f("ck_arrivals_state")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_arrivals_job_id")),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name=op.f("fk_arrivals_source_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arrivals")),
        sa.UniqueConstraint("identity", name=op.f("uq_arrivals_identity")),
    )
    with op.batch_alter_table("arrivals", schema=None) as batch_op:
        batch_op.create_index("ix_arrivals_admitted", ["source_id", "admitted_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_arrivals_job_id"), ["job_id"], unique=False)
        batch_op.create_index("ix_arrivals_source", ["source_id", "state", "modified_s", "id"], unique=False)

    op.create_table(
        "errands",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("state", sa.Text(), server_default="wanted", nullable=False),
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("receiver", sa.Text(), server_default="", nullable=False),
        sa.Column("round", sa.Integer(), server_default="1", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("place", sa.Text(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("assigned", sa.Text(), nullable=True),
        sa.Column("fence", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("crashes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("solo", sa.Integer(), server_default="0", nullable=False),
        sa.Column("solo_crashes", sa.Integer(), server_default="0", nullable=False),
        sa.CheckConstraint("kind IN ('webhook', 'sqs', 'sns', 'move', 'tag', 'delete')", name=op.f("ck_errands_kind")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_errands_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_errands")),
        sa.UniqueConstraint("job_id", "kind", "target", name=op.f("uq_errands_job_id_kind_target")),
        sa.UniqueConstraint("place", name=op.f("uq_errands_place")),
    )
    with op.batch_alter_table("errands", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_errands_job_id"), ["job_id"], unique=False)

    with op.batch_alter_table("recordings", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("superseded_by", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True)
        )
        batch_op.create_foreign_key(batch_op.f("fk_recordings_superseded_by"), "recordings", ["superseded_by"], ["id"])

    op.drop_index("ix_recordings_url", "recordings")  # a B-tree takes 2 700 bytes, a key's URL may have more
    op.create_index("ix_recordings_url", "recordings", ["url"], postgresql_using="hash")
    op.create_index("ix_errands_claim", "errands", ["state", sa.text("priority DESC"), "id"])
    suspect, later = sa.text("crashes >= 2"), sa.text("state = 'later'")
    due = sa.text("state = 'due' AND receiver <> ''")
    op.create_index("ix_errands_suspect", "errands", ["state"], sqlite_where=suspect, postgresql_where=suspect)
    op.create_index("ix_errands_receiver", "errands", ["receiver"], sqlite_where=due, postgresql_where=due)
    op.create_index("ix_errands_later", "errands", ["next_run_at"], sqlite_where=later, postgresql_where=later)
    if op.get_bind().dialect.name == "postgresql":  # as for the other claims (0002)
        op.execute(
            "ALTER TABLE errands SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000)"
        )


def downgrade() -> None:
    op.drop_index("ix_recordings_url", "recordings")
    op.create_index("ix_recordings_url", "recordings", ["url"])
    with op.batch_alter_table("recordings", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_recordings_superseded_by"), type_="foreignkey")
        batch_op.drop_column("superseded_by")
    for table in ("errands", "arrivals", "sources", "buckets"):
        op.drop_table(table)
