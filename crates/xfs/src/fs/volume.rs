//! What the volume can do beyond files.

use std::ops::Range;
use std::sync::Arc;

use cowshed_vfs::{
    Access, Caches, Context, Error as Errno, ExtentSink, Failure, Features, FileKind, FlagChange, InodeFlags, NodeId,
    Result, Volume, VolumeInfo,
};
use xfs_format::superblock::{SUPPORTED_INCOMPAT, SUPPORTED_RO_COMPAT};

use super::{Fs, errno, flags, outcome};
use crate::error::Error;
use crate::file;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(outcome(&error), error)
    }
}

impl Volume for Fs {
    fn info(&self) -> VolumeInfo {
        let sb = self.volume.superblock();
        VolumeInfo {
            format: "xfs",
            uuid: sb.uuid,
            label: sb.label().to_vec(),
            block_bytes: sb.blocksize.get(),
            metadata_block_bytes: sb.blocksize.get(),
            devices: 1,
            device_id_max: 1,
            generation: 0,
            features: Features {
                compat: sb.features_compat.get().into(),
                compat_ro: sb.features_ro_compat.get().into(),
                incompat: sb.features_incompat.get().into(),
            },
            known_features: Features {
                compat: 0,
                compat_ro: SUPPORTED_RO_COMPAT,
                incompat: SUPPORTED_INCOMPAT,
            },
            is_read_only: true,
            has_unreplayed_log: self.volume.has_dirty_log(),
        }
    }
    fn set_caches(&self, _caches: Arc<dyn Caches>) {}
    fn sync(&self) -> std::result::Result<(), Failure> {
        Ok(())
    }
    fn close(&self) -> std::result::Result<(), Failure> {
        Ok(())
    }
    fn abort(&self, reason: &str) {
        tracing::error!(reason, "aborted");
    }
    fn is_aborted(&self) -> bool {
        false
    }
    fn check_target(&self, _node: NodeId) -> Result<()> {
        Err(Errno::ReadOnly)
    }
    fn check_access(&self, ctx: &Context, node: NodeId, want: Access) -> Result<()> {
        let run = || self.check(ctx, &self.object(node)?, want);
        run().map_err(|e| errno("access", e))
    }
    fn generation(&self, node: NodeId) -> Result<u64> {
        let object = self.object(node).map_err(|e| errno("generation", e))?;
        Ok(object.core.generation.get().into())
    }
    fn flags(&self, node: NodeId) -> Result<InodeFlags> {
        let run = || flags::of(&self.volume, &self.object(node)?);
        run().map_err(|e| errno("flags", e))
    }
    fn set_flags(&self, _ctx: &Context, _node: NodeId, _change: &FlagChange) -> Result<()> {
        Err(Errno::ReadOnly)
    }
    fn set_label(&self, _ctx: &Context, _label: &[u8]) -> Result<()> {
        Err(Errno::ReadOnly)
    }
    fn map_extents(&self, node: NodeId, range: Range<u64>, wants_shared: bool, take: ExtentSink<'_>) -> Result<()> {
        let run = || {
            let object = self.object(node)?;
            match object.kind {
                FileKind::Regular => file::map(&self.volume, &object, range, wants_shared, take),
                FileKind::Directory => Err(Errno::IsDirectory.into()),
                _ => Err(Errno::Invalid.into()),
            }
        };
        run().map_err(|e| errno("map", e))
    }
}
