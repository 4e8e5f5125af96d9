// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Physical region pages: how a command names its data (§4.1.1).
//!
//! Every entry names what is left of one page. The first may begin anywhere in its page, all others
//! at its beginning. Up to two entries lie in the command; of more, the second is the address of a
//! list. "Physical" is from the device's side: under a remapping unit these are IOVAs, so one
//! buffer's entries are one arithmetic sequence, however its memory is scattered, and the list
//! depends on nothing but the first address.

use super::error::NvmeError;
use ioatlas_dma::units::*;

/// Entries of a list that is one page.
pub const LIST_ENTRIES: usize = (GRANULE / 8) as usize;

/// The two entries of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataPointer {
    first: Iova,
    second: Iova,
}

impl DataPointer {
    /// Of a command without data.
    pub const NONE: DataPointer = DataPointer {
        first: Iova(0),
        second: Iova(0),
    };
    /// Of data within one page.
    pub fn page(at: Iova) -> Self {
        DataPointer {
            first: at,
            second: Iova(0),
        }
    }
    /// Both entries, as they stand in a command.
    pub fn entries(&self) -> [Iova; 2] {
        [self.first, self.second]
    }
}

/// Names `segments`, each contiguous; what does not fit into the command goes to
/// `list(index, entry)`, whose page is at `list_at`.
///
/// # Errors
/// [`NvmeError::InnerEdge`]; [`NvmeError::TooLong`] where one list does not suffice.
pub fn describe(
    segments: impl IntoIterator<Item = (Iova, ByteCount)>,
    list_at: Iova,
    mut list: impl FnMut(usize, Iova),
) -> Result<DataPointer, NvmeError> {
    let mut first = None;
    let mut second = Iova(0);
    // entries after the first
    let mut more = 0;
    let mut ends_inside = false;
    let mut total = 0;
    for (segment, (at, len)) in segments.into_iter().enumerate() {
        if len.0 == 0 {
            continue;
        }
        if first.is_some() && (ends_inside || at.offset() != 0) {
            return Err(NvmeError::InnerEdge { segment });
        }
        let end = at.0 + len.0;
        ends_inside = end % GRANULE != 0;
        total += len.0;
        let mut entry = at;
        while entry.0 < end {
            if first.is_none() {
                first = Some(entry);
            } else {
                if more == LIST_ENTRIES {
                    let len = ByteCount(total);
                    let most = ByteCount(LIST_ENTRIES as u64 * GRANULE);
                    return Err(NvmeError::TooLong { len, most });
                }
                if more == 0 {
                    second = entry;
                } else {
                    if more == 1 {
                        list(0, second); // there is a second one, so all go to the list
                    }
                    list(more, entry);
                }
                more += 1;
            }
            entry = Iova((entry.0 | (GRANULE - 1)) + 1);
        }
    }
    Ok(DataPointer {
        first: first.unwrap_or(Iova(0)),
        second: if more > 1 { list_at } else { second },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: Iova = Iova(0xaaaa_0000);

    fn described(segments: &[(u64, u64)]) -> Result<(Vec<u64>, Vec<u64>), String> {
        let mut list = Vec::new();
        let segments = segments
            .iter()
            .map(|(at, len)| (Iova(*at), ByteCount(*len)));
        let pointer = describe(segments, LIST, |index, entry| {
            assert_eq!(index, list.len(), "in order");
            list.push(entry.0);
        });
        let pointer = pointer.map_err(|error| error.to_string())?;
        Ok((pointer.entries().map(|entry| entry.0).to_vec(), list))
    }

    #[test]
    fn up_to_two_pages_need_no_list() {
        let none = Vec::new();
        assert_eq!(
            described(&[(0x5000, 4096)]).unwrap(),
            (vec![0x5000, 0], none.clone())
        );
        assert_eq!(
            described(&[(0x5800, 2048)]).unwrap(),
            (vec![0x5800, 0], none.clone())
        );
        assert_eq!(
            described(&[(0x5800, 2049)]).unwrap(),
            (vec![0x5800, 0x6000], none.clone())
        );
        assert_eq!(
            described(&[(0x5000, 8192)]).unwrap(),
            (vec![0x5000, 0x6000], none)
        );
    }

    #[test]
    fn more_go_to_the_list_and_begin_at_their_pages() {
        let (pointer, list) = described(&[(0x5800, 0x2801)]).unwrap();
        assert_eq!(pointer, [0x5800, LIST.0]);
        assert_eq!(list, [0x6000, 0x7000, 0x8000]);
        let (_, list) = described(&[(0x5000, 128 << 10)]).unwrap();
        assert_eq!(list.len(), 31);
    }

    #[test]
    fn segments_may_lie_apart_but_not_end_inside_pages() {
        let (pointer, list) =
            described(&[(0x5800, 0x800), (0x9000, 0x1000), (0x3000, 10)]).unwrap();
        assert_eq!(
            (pointer, list),
            (vec![0x5800, LIST.0], vec![0x9000, 0x3000])
        );
        assert!(
            described(&[(0x5000, 0x800), (0x9000, 0x1000)])
                .unwrap_err()
                .contains("segment 1")
        );
        assert!(
            described(&[(0x5000, 0x1000), (0x9800, 0x800)])
                .unwrap_err()
                .contains("segment 1")
        );
    }

    #[test]
    fn one_list_names_two_mib_and_a_page() {
        assert!(described(&[(0x5000, 513 * 4096)]).is_ok());
        assert!(
            described(&[(0x5000, 513 * 4096 + 1)])
                .unwrap_err()
                .contains("takes")
        );
    }
}
