"""Operations: which trace a job belongs to, what a worker has done, canaries, how many workers are wanted, chores."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("trace", sa.Text, nullable=True))
    op.add_column("workers", sa.Column("device", sa.Text, nullable=False, server_default=""))
    op.add_column("workers", sa.Column("audio_s", sa.Float, nullable=False, server_default="0"))
    op.create_index("ix_recordings_superseded_by", "recordings", ["superseded_by"])  # purging asks it for each
    op.create_table(
        "canaries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("recording", sa.Text, nullable=False),
        sa.Column("wer", sa.Float, nullable=False),
        sa.Column("rtfx", sa.Float, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.create_index("ix_canaries_created_at", "canaries", ["created_at"])
    op.create_table(
        "scaling",
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("wanted", sa.Integer, nullable=False),
        sa.Column("fewer_since", TIME, nullable=True),
        sa.Column("decided_at", TIME, nullable=False),
    )
    op.create_table("chores", sa.Column("name", sa.Text, primary_key=True), sa.Column("taken_at", TIME, nullable=False))


def downgrade() -> None:
    op.drop_table("chores")
    op.drop_table("scaling")
    op.drop_table("canaries")
    op.drop_index("ix_recordings_superseded_by", "recordings")
    op.drop_column("workers", "audio_s")
    op.drop_column("workers", "device")
    op.drop_column("jobs", "trace")
