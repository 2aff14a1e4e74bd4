//! The kinds of volumes that btrfs has: profile, checksum, node size, features, compression.

use crate::VolumeOptions;

fn single() -> VolumeOptions {
    VolumeOptions::default()
}

/// One volume of each important kind: what a test of moderate cost goes through.
pub fn matrix_small() -> Vec<VolumeOptions> {
    vec![
        single(),
        VolumeOptions {
            csum: Some("blake2"),
            node_bytes: Some(4096),
            mount_options: "compress-force=zstd",
            ..single()
        },
        VolumeOptions {
            mixed: true,
            csum: Some("xxhash"),
            mount_options: "compress-force=lzo",
            ..single()
        },
        VolumeOptions {
            features: vec!["^no-holes"],
            runtime_features: vec!["^free-space-tree"],
            ..single()
        },
        VolumeOptions {
            csum: Some("sha256"),
            ..VolumeOptions::devices(2, "raid1", "raid1")
        },
        VolumeOptions {
            mount_options: "compress-force=zlib",
            ..VolumeOptions::devices(4, "raid10", "raid1c3")
        },
    ]
}

/// Every profile, checksum, node size, compression and feature at least once.
pub fn matrix_full() -> Vec<VolumeOptions> {
    let mut all = matrix_small();
    let profiles = [
        (1, "dup", "dup"),
        (1, "single", "single"),
        (2, "single", "raid1"),
        (3, "raid0", "raid1"),
        (3, "raid1c3", "raid1c3"),
        (4, "raid1c4", "raid1c4"),
        (3, "raid5", "raid5"),
        (4, "raid6", "raid6"),
        (5, "raid10", "raid10"),
    ];
    all.extend(profiles.map(|(devices, data, metadata)| VolumeOptions::devices(devices, data, metadata)));
    all.extend([8192, 32768, 65536].map(|n| VolumeOptions {
        node_bytes: Some(n),
        ..single()
    }));
    let mounts = [
        "compress-force=zstd:15",
        "compress=lzo",
        "nodatasum",
        "nodatacow",
        "max_inline=0",
    ];
    all.extend(mounts.map(|m| VolumeOptions {
        mount_options: m,
        ..single()
    }));
    all.push(VolumeOptions {
        runtime_features: vec!["quota"],
        ..single()
    });
    all.push(VolumeOptions {
        features: vec!["^extref"],
        ..single()
    });
    all.push(VolumeOptions {
        features: vec!["^skinny-metadata"],
        ..single()
    });
    all.push(VolumeOptions {
        label: Some("a label".into()),
        ..VolumeOptions::devices(2, "raid0", "raid0")
    });
    all
}
