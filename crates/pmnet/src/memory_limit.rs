//! The memory limit of this process: that of its control group, for example in a container. If the process exceeds the
//! limit, the kernel kills it without a message. Files of the process in /dev/shm count as its memory.

use std::path::{Path, PathBuf};

/// Folder of the control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// Returns the smallest memory limit that applies to this process, in bytes; `None`: there is no limit, or it cannot be
/// read.
pub fn memory_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    within(Path::new(ROOT), &groups)
}

fn within(root: &Path, groups: &str) -> Option<u64> {
    let (mut old, mut new) = ("/", "/");
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next(), fields.next()) {
            (Some(""), Some(path)) => new = path,
            (Some(kinds), Some(path)) if kinds.split(',').any(|kind| kind == "memory") => {
                old = path
            }
            _ => {}
        }
    }
    let of_old = limits(&root.join("memory"), old, "memory.limit_in_bytes");
    let of_new = limits(root, new, "memory.max");
    of_old.chain(of_new).min()
}

/// Returns the limits of a control group and of all groups above it. Inside a container, the container's own group is
/// the topmost one that is visible.
fn limits(top: &Path, group: &str, name: &'static str) -> impl Iterator<Item = u64> + use<> {
    let group = group.trim_matches('/');
    let own: PathBuf = top.join(group);
    let folders: Vec<PathBuf> = own
        .ancestors()
        .take_while(|folder| folder.starts_with(top))
        .map(Path::to_path_buf)
        .collect();
    let read = move |folder: PathBuf| std::fs::read_to_string(folder.join(name)).ok();
    let numbers = folders.into_iter().filter_map(read);
    // "max" is not a number, so it is no limit. The older interface reports the absence of a limit as a number close to
    // the size of the address space.
    numbers
        .filter_map(|text| text.trim().parse().ok())
        .filter(|limit| *limit < u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(within(root.path(), ""), None);
        put("a/b/memory.max", "max\n");
        put("a/memory.max", "4096\n");
        assert_eq!(within(root.path(), "0::/a/b\n"), Some(4096));
        assert_eq!(within(root.path(), "0::/\n"), None);
        put("a/b/memory.max", "1024\n");
        assert_eq!(within(root.path(), "0::/a/b\n"), Some(1024));
        // The older interface, in a container where the path of the process's group does not exist.
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(within(root.path(), "4:memory:/x\n0::/\n"), None);
        put("memory/memory.limit_in_bytes", "512\n");
        assert_eq!(within(root.path(), "4:cpu,memory:/x\n0::/a/b\n"), Some(512));
    }
}
