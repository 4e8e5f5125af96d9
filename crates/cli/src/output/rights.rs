// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Whose a file is, and who may read it.

use rustix::fs::{Gid, Uid, fchown, getxattr_query};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Bits of the mode that say what a group may.
const GROUP: u32 = 0o070;

/// All that are not the owner's own, with those that lend its rights.
const OTHERS: u32 = 0o7077;

/// Bit of the mode of a folder from which only owners remove files.
const STICKY: u32 = 0o1000;

/// What a file that takes another's place has of it.
#[derive(Debug)]
pub(super) struct Rights {
    owner: u32,
    group: u32,
    mode: u32,
}

impl Rights {
    /// Those of a file that is there. Of one with an access control list, whose mask the mode shows
    /// in the place of the group's rights, the group gets none.
    pub fn of(path: &Path, metadata: &Metadata) -> Self {
        let listed = getxattr_query(path, "system.posix_acl_access").is_ok();
        let rights = Self::of_mode(metadata);
        Self {
            mode: rights.mode & if listed { !GROUP } else { !0 },
            ..rights
        }
    }

    /// Those that its metadata tell.
    pub fn of_mode(metadata: &Metadata) -> Self {
        Self {
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode() & 0o7777,
        }
    }

    /// Gives them to a file. Where it cannot have the owner and the group, it is for its own owner.
    pub fn give(&self, file: &File) -> io::Result<()> {
        let now = Self::of_mode(&file.metadata()?);
        let are_kept = (now.owner, now.group) == (self.owner, self.group)
            || own(file, self.owner, self.group).is_ok();
        let mode = self.mode & if are_kept { !0 } else { !OTHERS };
        // after the owner, whose change takes bits away
        file.set_permissions(Permissions::from_mode(mode))
    }

    /// Whether this user may replace the file in a folder.
    pub fn may_replace(&self, folder: &Metadata, user: Uid) -> bool {
        let owners = [self.owner, folder.uid()].map(Uid::from_raw);
        folder.mode() & STICKY == 0 || user.is_root() || owners.contains(&user)
    }
}

fn own(file: &File, owner: u32, group: u32) -> io::Result<()> {
    let (owner, group) = (Uid::from_raw(owner), Gid::from_raw(group));
    Ok(fchown(file, Some(owner), Some(group))?)
}

/// Gives a file of root's to the user that called sudo, if one did.
pub(crate) fn give_to_caller(file: &File) {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let caller = number("SUDO_UID").zip(number("SUDO_GID"));
    if let (Some((owner, group)), true) = (caller, rustix::process::geteuid().is_root()) {
        // where no file can have another owner, it stays root's
        let _ = own(file, owner, group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_cannot_have_the_owner_is_for_its_own_alone() {
        let file = tempfile::tempfile().unwrap();
        let (before, mode) = (file.metadata().unwrap(), 0o6754);
        let same = Rights {
            mode,
            ..Rights::of_mode(&before)
        };
        same.give(&file).unwrap();
        assert_eq!(Rights::of_mode(&file.metadata().unwrap()).mode, mode);
        let other = Rights {
            owner: before.uid() + 1,
            group: before.gid() + 1,
            mode,
        };
        other.give(&file).unwrap();
        let now = Rights::of_mode(&file.metadata().unwrap());
        match rustix::process::geteuid().is_root() {
            true => assert_eq!(format!("{now:?}"), format!("{other:?}")),
            false => assert_eq!((now.owner, now.mode), (before.uid(), 0o700)),
        }
    }

    #[test]
    fn the_mask_of_an_access_control_list_is_no_right_of_the_group() {
        use rustix::fs::{XattrFlags, setxattr};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
        let rights = || Rights::of(&path, &fs::metadata(&path).unwrap()).mode;
        assert_eq!(rights(), 0o660);
        // version 2: the owner reads and writes, so does user 1234, the group does nothing, the
        // mask lets both, others do nothing
        let entries: [(u16, u16, u32); 5] = [
            (1, 6, !0),
            (2, 6, 1234),
            (4, 0, !0),
            (0x10, 6, !0),
            (0x20, 0, !0),
        ];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, may, id) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(may.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        let name = "system.posix_acl_access";
        if setxattr(&path, name, &list, XattrFlags::empty()).is_err() {
            return; // this file system has none
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        assert_eq!(rights(), 0o600);
    }

    #[test]
    fn only_owners_replace_what_is_in_a_sticky_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |mode| {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            fs::metadata(dir.path()).unwrap()
        };
        let (sticky, plain) = (folder(0o1777), folder(0o777));
        let owner = sticky.uid() + 1;
        let file = Rights {
            owner,
            group: 0,
            mode: 0o644,
        };
        let users = [owner, sticky.uid(), 0, owner + 1].map(Uid::from_raw);
        let may = |folder| users.map(|user| file.may_replace(folder, user));
        assert_eq!(may(&sticky), [true, true, true, false]);
        assert_eq!(may(&plain), [true; 4]);
    }
}
