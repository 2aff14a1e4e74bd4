//! Intents without their "done", in the order of the log.

use std::collections::BTreeMap;

use xfs_format::log::{ByteOrder, Intent, ItemType, LogItem};

/// An intent as it was logged: its regions outlive the record.
pub(super) struct Pending {
    pub order: ByteOrder,
    pub regions: Vec<Vec<u8>>,
}

/// What the log promised.
#[derive(Default)]
pub(super) struct Intents {
    next: u64,
    by_number: BTreeMap<u64, Pending>,
    by_id: BTreeMap<(u16, u64), u64>,
}

/// The intent of a "done".
fn intent_of(done: ItemType) -> ItemType {
    match done {
        ItemType::Efd => ItemType::Efi,
        ItemType::EfdRt => ItemType::EfiRt,
        ItemType::Rud => ItemType::Rui,
        ItemType::RudRt => ItemType::RuiRt,
        ItemType::Cud => ItemType::Cui,
        ItemType::CudRt => ItemType::CuiRt,
        ItemType::Bud => ItemType::Bui,
        ItemType::Attrd => ItemType::Attri,
        ItemType::Xmd => ItemType::Xmi,
        other => other,
    }
}

impl Intents {
    pub(super) fn promise(&mut self, intent: &Intent<'_>, regions: &[&[u8]], order: ByteOrder) {
        self.by_id.insert((intent.ty().to_raw(), intent.id()), self.next);
        let regions = regions.iter().map(|region| region.to_vec()).collect();
        self.by_number.insert(self.next, Pending { order, regions });
        self.next += 1;
    }

    pub(super) fn done(&mut self, ty: ItemType, id: u64) {
        if let Some(number) = self.by_id.remove(&(intent_of(ty).to_raw(), id)) {
            self.by_number.remove(&number);
        }
    }

    /// What was not done, the oldest one first.
    pub(super) fn into_unfinished(self) -> Vec<Pending> {
        self.by_number.into_values().collect()
    }
}

impl Pending {
    /// Calls with the intent. It was read once, so it reads again.
    pub(super) fn with<R>(&self, then: impl FnOnce(&Intent<'_>) -> R) -> Option<R> {
        let regions: Vec<&[u8]> = self.regions.iter().map(Vec::as_slice).collect();
        match LogItem::read(&regions, self.order) {
            Ok(LogItem::Intent(intent)) => Some(then(&intent)),
            _ => None,
        }
    }
}
