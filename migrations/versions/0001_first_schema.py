"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "recordings",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("container", sa.Text(), nullable=True),
        sa.Column("codec", sa.Text(), nullable=True),
        sa.Column("sample_rate", sa.Integer(), nullable=True),
        sa.Column("channels", sa.Integer(), nullable=True),
        sa.Column("expected_s", sa.Float(), nullable=True),
        sa.Column("decoded_s", sa.Float(), nullable=True),
        sa.Column("duration_s", sa.Float(), nullable=True),
        sa.Column("decode_errors", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recordings")),
        sa.UniqueConstraint("identity", name=op.f("uq_recordings_identity")),
    )
    with op.batch_alter_table("recordings", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_recordings_sha256"), ["sha256"], unique=False)
        batch_op.create_index(batch_op.f("ix_recordings_url"), ["url"], unique=False)

    op.create_table(
        "transcripts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("options_digest", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("compute_type", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("language_probability", sa.Float(), nullable=False),
        sa.Column("duration_s", sa.Float(), nullable=False),
        sa.Column("channels", sa.Integer(), nullable=False),
        sa.Column("words", sa.Integer(), nullable=False),
        sa.Column("transcribed_s", sa.Float(), nullable=False),
        sa.Column("no_speech_s", sa.Float(), nullable=False),
        sa.Column("failed_s", sa.Float(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transcripts")),
    )
    with op.batch_alter_table("transcripts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_transcripts_sha256"), ["sha256"], unique=False)

    op.create_table(
        "coverage",
        sa.Column("transcript_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("channel", sa.Integer(), nullable=False),
        sa.Column("start_s", sa.Float(), nullable=False),
        sa.Column("end_s", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.CheckConstraint("kind IN ('transcribed', 'no_speech', 'failed')", name=op.f("ck_coverage_kind")),
        sa.ForeignKeyConstraint(["transcript_id"], ["transcripts.id"], name=op.f("fk_coverage_transcript_id")),
        sa.PrimaryKeyConstraint("transcript_id", "position", name=op.f("pk_coverage")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("recording_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("options_digest", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("content_key", sa.Text(), nullable=True),
        sa.Column("leader", sa.Integer(), server_default="0", nullable=False),
        sa.Column("follows", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("force", sa.Integer(), server_default="0", nullable=False),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("language_probability", sa.Float(), nullable=True),
        sa.Column("duration_s", sa.Float(), nullable=True),
        sa.Column("channels", sa.Integer(), nullable=True),
        sa.Column("lost", sa.JSON(), nullable=True),
        sa.Column("transcript_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("assigned", sa.Text(), nullable=True),
        sa.Column("fence", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("crashes", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["follows"], ["jobs.id"], name=op.f("fk_jobs_follows")),
        sa.ForeignKeyConstraint(["recording_id"], ["recordings.id"], name=op.f("fk_jobs_recording_id")),
        sa.ForeignKeyConstraint(["transcript_id"], ["transcripts.id"], name=op.f("fk_jobs_transcript_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("recording_id", "options_digest", name=op.f("uq_jobs_recording_id_options_digest")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_claim", ["state", "priority", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_follows"), ["follows"], unique=False)
        batch_op.create_index(
            "uq_jobs_leader",
            ["content_key"],
            unique=True,
            sqlite_where=sa.text("leader = 1"),
            postgresql_where=sa.text("leader = 1"),
        )

    op.create_table(
        "segments",
        sa.Column("transcript_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("channel", sa.Integer(), nullable=False),
        sa.Column("start_s", sa.Float(), nullable=False),
        sa.Column("end_s", sa.Float(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("avg_logprob", sa.Float(), nullable=False),
        sa.Column("no_speech_prob", sa.Float(), nullable=False),
        sa.Column("compression_ratio", sa.Float(), nullable=False),
        sa.Column("temperature", sa.Float(), nullable=False),
        sa.Column("flags", sa.Text(), nullable=False),
        sa.Column("words", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["transcript_id"], ["transcripts.id"], name=op.f("fk_segments_transcript_id")),
        sa.PrimaryKeyConstraint("transcript_id", "position", name=op.f("pk_segments")),
    )
    op.create_table(
        "outputs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_outputs_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outputs")),
        sa.UniqueConstraint("url", name=op.f("uq_outputs_url")),
    )
    with op.batch_alter_table("outputs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_outputs_job_id"), ["job_id"], unique=False)

    op.create_table(
        "shards",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("channel", sa.Integer(), nullable=False),
        sa.Column("start_s", sa.Float(), nullable=False),
        sa.Column("end_s", sa.Float(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("object_key", sa.Text(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("assigned", sa.Text(), nullable=True),
        sa.Column("fence", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("crashes", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_shards_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shards")),
        sa.UniqueConstraint("job_id", "position", name=op.f("uq_shards_job_id_position")),
    )
    with op.batch_alter_table("shards", schema=None) as batch_op:
        batch_op.create_index("ix_shards_claim", ["state", "priority", "id"], unique=False)

    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("chunk", sa.Integer(), nullable=False),
        sa.Column("shard_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("decodes", sa.Integer(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id")),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name=op.f("fk_checkpoints_shard_id")),
        sa.PrimaryKeyConstraint("job_id", "chunk", name=op.f("pk_checkpoints")),
    )
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checkpoints_shard_id"), ["shard_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_checkpoints_shard_id"))

    op.drop_table("checkpoints")
    with op.batch_alter_table("shards", schema=None) as batch_op:
        batch_op.drop_index("ix_shards_claim")

    op.drop_table("shards")
    with op.batch_alter_table("outputs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_outputs_job_id"))

    op.drop_table("outputs")
    op.drop_table("segments")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_jobs_leader", sqlite_where=sa.text("leader = 1"), postgresql_where=sa.text("leader = 1")
        )
        batch_op.drop_index(batch_op.f("ix_jobs_follows"))
        batch_op.drop_index("ix_jobs_claim")

    op.drop_table("jobs")
    op.drop_table("coverage")
    with op.batch_alter_table("transcripts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_transcripts_sha256"))

    op.drop_table("transcripts")
    with op.batch_alter_table("recordings", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_recordings_url"))
        batch_op.drop_index(batch_op.f("ix_recordings_sha256"))

    op.drop_table("recordings")
