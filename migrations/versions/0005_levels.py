"""How loud each recording is, what was repaired, which track was decoded and how its channels became one."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

TRACKS = ("track", "tracks")
NUMBERS = ("loudest_db", "clipped", "dc_offset", "gain_db", "highpass_hz")


def upgrade() -> None:
    for name in TRACKS:
        op.add_column("recordings", sa.Column(name, sa.Integer(), nullable=True))
    op.add_column("recordings", sa.Column("mixed", sa.Text(), nullable=True))
    for name in NUMBERS:
        op.add_column("recordings", sa.Column(name, sa.Float(), nullable=True))


def downgrade() -> None:
    for name in (*TRACKS, "mixed", *NUMBERS):
        op.drop_column("recordings", name)
