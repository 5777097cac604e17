//! Tests with trees of files like the tree under `/sys`.

use std::os::unix::fs::symlink;

use super::*;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        Tree(tempfile::tempdir().unwrap())
    }

    fn sysfs(&self) -> Sysfs<'_> {
        Sysfs(self.0.path())
    }

    /// Makes a folder with attributes. It belongs to this subsystem, unless `subsystem` is empty.
    fn folder(&self, path: &str, subsystem: &str, attributes: &[(&str, &str)]) {
        let folder = self.0.path().join(path);
        fs::create_dir_all(&folder).unwrap();
        if !subsystem.is_empty() {
            symlink(format!("/bus/{subsystem}"), folder.join("subsystem")).unwrap();
        }
        for (name, text) in attributes {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    /// Makes `path` the folder of a device. Returns the number of the device.
    fn number(&self, kind: &str, minor: u32, path: &str) -> u64 {
        let links = self.0.path().join("dev").join(kind);
        fs::create_dir_all(&links).unwrap();
        symlink(self.0.path().join(path), links.join(format!("252:{minor}"))).unwrap();
        libc::makedev(252, minor)
    }

    fn region(&self, name: &str, domain: Option<&str>, bad: &str) {
        let mut attributes = vec![("badblocks", bad), ("resource", "0x100000000\n")];
        attributes.extend(domain.map(|text| ("persistence_domain", text)));
        self.folder(&format!("devices/ndbus0/{name}"), "nd", &attributes);
    }

    fn disk(&self, minor: u32, region: &str, bad: &str) -> u64 {
        let path = format!("devices/ndbus0/{region}/pfn0.1/block/pmem{minor}");
        self.folder(&path, "block", &[("badblocks", bad)]);
        self.number("block", minor, &path)
    }

    fn dax(&self, minor: u32, region: &str, attributes: &[(&str, &str)]) -> u64 {
        let path = format!("devices/ndbus0/{region}/dax0.{minor}/dax0.{minor}");
        self.folder(&path, "dax", attributes);
        self.number("char", minor, &path)
    }
}

#[test]
fn what_a_power_cut_leaves_by_the_region_behind_a_disk_or_a_device() {
    for (text, domain) in [
        (Some("cpu_cache\n"), Domain::CpuCache),
        (Some("memory_controller\n"), Domain::Memory),
        (Some("\n"), Domain::Unsaid),
        (Some("something new\n"), Domain::Unsaid),
        (None, Domain::Unsaid),
    ] {
        let tree = Tree::new();
        tree.region("region0", text, "");
        let disk = tree.disk(0, "region0", "");
        let dax = tree.dax(1, "region0", &[("size", "2097152\n")]);
        let expected = Backing {
            domain,
            bad_bytes: 0,
            unknown: Vec::new(),
        };
        assert_eq!(tree.sysfs().block_memory(disk), expected, "{text:?}");
        assert_eq!(tree.sysfs().dax_memory(dax), expected, "{text:?}");
        assert!(tree.sysfs().is_dax(dax) && !tree.sysfs().is_dax(disk));
        assert_eq!(tree.sysfs().dax_bytes(dax).unwrap(), 2 << 20);
    }
}

/// Memory of CXL or of the firmware may be DRAM. So a folder called region proves nothing, unless it is the folder of
/// an NVDIMM.
#[test]
fn memory_without_an_nvdimm_region_is_not_called_persistent() {
    let tree = Tree::new();
    tree.folder(
        "devices/cxl/region0",
        "cxl",
        &[("persistence_domain", "cpu_cache\n")],
    );
    tree.folder("devices/cxl/region0/dax0.0", "dax", &[("size", "4096\n")]);
    let dax = tree.number("char", 0, "devices/cxl/region0/dax0.0");
    tree.folder("devices/virtual/block/vda", "block", &[("badblocks", "")]);
    let disk = tree.number("block", 0, "devices/virtual/block/vda");
    let absent = libc::makedev(9, 9);
    for memory in [
        tree.sysfs().dax_memory(dax),
        tree.sysfs().dax_memory(absent),
        tree.sysfs().block_memory(disk),
        tree.sysfs().block_memory(absent),
    ] {
        assert_eq!(memory.domain, Domain::NotPersistent);
        assert_eq!(memory.unknown.len(), 1, "{memory:?}");
        assert!(!memory.domain.survives().starts_with("power"));
    }
    assert!(!tree.sysfs().is_dax(absent));
    assert!(tree.sysfs().dax_bytes(absent).is_err());
}

#[test]
fn the_weakest_of_the_disks_below_a_volume_counts_and_all_their_bad_blocks() {
    let tree = Tree::new();
    tree.region("region0", Some("cpu_cache"), "");
    tree.region("region1", Some("memory_controller"), "");
    tree.disk(0, "region0", "8 1\n");
    tree.disk(1, "region1", "64 2\n");
    let first = "ndbus0/region0/pfn0.1/block/pmem0/pmem0p1";
    let second = "ndbus0/region1/pfn0.1/block/pmem1";
    tree.folder(&format!("devices/{first}"), "block", &[("partition", "1")]);
    // Volumes over both devices, in either order, and a volume over the first volume.
    let slaves = [
        ("dm-0", vec![("a", first), ("b", second)]),
        ("dm-1", vec![("a", second), ("b", first)]),
        ("dm-2", vec![("a", "dm-0")]),
    ];
    let devices = tree.0.path().join("devices");
    for (minor, (name, below)) in (10..).zip(slaves) {
        let folder = format!("devices/{name}/slaves");
        tree.folder(&folder, "", &[]);
        for (link, device) in &below {
            symlink(devices.join(device), tree.0.path().join(&folder).join(link)).unwrap();
        }
        let volume = tree.number("block", minor, &format!("devices/{name}"));
        let memory = tree.sysfs().block_memory(volume);
        let found = (memory.domain, memory.bad_bytes);
        assert_eq!(found, (Domain::Memory, 3 * 512), "{name}");
        assert_eq!(memory.unknown, [""; 0]);
    }
    let part = tree.number("block", 9, &format!("devices/{first}"));
    let memory = tree.sysfs().block_memory(part);
    let found = (memory.domain, memory.bad_bytes);
    assert_eq!(found, (Domain::CpuCache, 512));
}

#[test]
fn bad_blocks_of_a_region_count_where_the_device_is() {
    let tree = Tree::new();
    // Two sectors at 1 MiB, one in the last sector of the device, and one after the device.
    tree.region(
        "region0",
        Some("memory_controller"),
        "2048 2\n8191 1\n8192 1\n",
    );
    let place = [("resource", "0x100200000"), ("size", "2097152")];
    let inside = tree.dax(0, "region0", &place);
    assert_eq!(tree.sysfs().dax_memory(inside).bad_bytes, 512);
    // The device's range in the region cannot be read without privilege, so all bad blocks of the region count.
    let somewhere = tree.dax(1, "region0", &[("size", "2097152")]);
    assert_eq!(tree.sysfs().dax_memory(somewhere).bad_bytes, 4 * 512);
}

#[test]
fn a_list_that_cannot_be_read_is_said() {
    let tree = Tree::new();
    tree.region("region0", Some("cpu_cache"), "");
    let path = "devices/ndbus0/region0/pfn0.1/block/pmem0";
    tree.folder(path, "block", &[]);
    let disk = tree.number("block", 0, path);
    let memory = tree.sysfs().block_memory(disk);
    assert!(memory.unknown[0].contains("bad blocks"), "{memory:?}");
    for (text, bytes, unknown) in [
        ("1 2 3\n", 1024, 0),
        ("\n\n", 0, 0),
        ("one 2\n4 1\n", 512, 1),
        ("7\n", 0, 1),
        ("18446744073709551615 18446744073709551615\n", 0, 0),
    ] {
        fs::write(tree.0.path().join(path).join("badblocks"), text).unwrap();
        let memory = tree.sysfs().block_memory(disk);
        assert_eq!(
            (memory.bad_bytes, memory.unknown.len()),
            (bytes, unknown),
            "{text:?}"
        );
    }
}
