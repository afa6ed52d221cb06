"""Imports every model, so that `Base.metadata` knows all tables."""

from hub_server.accounts import models as accounts
from hub_server.changes import models as changes
from hub_server.database import Base
from hub_server.environments import models as environments
from hub_server.evaluations import models as evaluations
from hub_server.logins import models as logins
from hub_server.publishing import models as publishing
from hub_server.secrets import models as secrets

FEATURES = (accounts, changes, environments, evaluations, logins, publishing, secrets)
ALL_TABLES = tuple(Base.metadata.sorted_tables)
