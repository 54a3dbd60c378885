"""How sure the model is of each segment's language."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("segments", sa.Column("language_probability", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("segments", "language_probability")
