from deepfs.workspaces.merging import MergeConflict as MergeConflict
from deepfs.workspaces.merging import MergeResult as MergeResult
from deepfs.workspaces.merging import WorkspaceChange as WorkspaceChange
from deepfs.workspaces.overlay import OverlayBackend as OverlayBackend
from deepfs.workspaces.overlay import fork as fork
from deepfs.workspaces.snapshots import RestoreResult as RestoreResult
from deepfs.workspaces.snapshots import Snapshot as Snapshot
from deepfs.workspaces.snapshots import Snapshots as Snapshots
