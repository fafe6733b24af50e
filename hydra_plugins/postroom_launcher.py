"""Where Hydra finds the launcher; all of it is in `postroom.adapters.hydra`.

This folder has no `__init__.py`: the package `hydra_plugins` belongs to the plugins of everybody.
"""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

from postroom.adapters.hydra import LauncherOptions, Launches


class PostroomLauncher(Launches):
    """Runs each job of a sweep on a GPU of its own: `hydra/launcher=postroom`."""


@dataclass
class PostroomLauncherConf(LauncherOptions):
    """The options below `hydra.launcher`."""

    _target_: str = "hydra_plugins.postroom_launcher.PostroomLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="postroom", node=PostroomLauncherConf)
