//! Checks the devices of one configuration file: each by itself, and then whether they go together.

use std::net::SocketAddr;

use pmnet_cli::ConfigError;

use super::settings::{Place, Settings};
use super::{DeviceArgs, check};

/// The devices of one file, each with the name of its section.
#[derive(Default)]
pub struct Devices(Vec<(String, Settings)>);

impl Devices {
    /// Checks the settings of a section in the same way as `pmnet device`, and adds its devices.
    ///
    /// # Errors
    /// `pmnet device` would refuse these settings.
    pub fn add(&mut self, section: &str, args: DeviceArgs) -> Result<(), ConfigError> {
        let shards = check(args)?.into_iter();
        self.0
            .extend(shards.map(|settings| (section.to_owned(), settings)));
        Ok(())
    }

    /// Checks that no two devices have the same log, and that no two devices of one chain have the same id.
    ///
    /// # Errors
    /// The error names the sections of two such devices.
    pub fn go_together(&self) -> Result<(), ConfigError> {
        for (place, (section, settings)) in self.0.iter().enumerate() {
            for (other, earlier) in &self.0[..place] {
                if let Some(text) = self.clash(earlier, settings) {
                    let text = format!("[{other}] and [{section}] have {text}");
                    return Err(ConfigError(text));
                }
            }
        }
        Ok(())
    }

    fn clash(&self, one: &Settings, other: &Settings) -> Option<String> {
        let in_kernel = |settings: &Settings| settings.kernel().is_some();
        if one.path == other.path && in_kernel(one) == in_kernel(other) {
            return Some(
                match in_kernel(one) {
                    true => format!("the name {} in the kernel", one.path.display()),
                    false => format!("the log {}", one.path.display()),
                } + ": give each device its own",
            );
        }
        let (a, b) = (&one.relay.device, &other.relay.device);
        let same = (a.id, a.shard) == (b.id, b.shard);
        (same && self.end(one) == self.end(other)).then(|| {
            format!(
                "id {} in shard {}: give each device of a chain its own --id",
                a.id, a.shard
            )
        })
    }

    /// Returns the address at which the part of the chain that is in this file ends: usually that of the server.
    fn end(&self, first: &Settings) -> SocketAddr {
        let mut device = first;
        // A file can wire its devices in a circle, so the number of steps is bounded.
        for _ in &self.0 {
            if let Place::Store(..) = device.place {
                return device.relay.listen;
            }
            let next = device.relay.device.next;
            let mut all = self.0.iter().map(|(_, settings)| settings);
            match all.find(|settings| settings.relay.listen == next) {
                Some(behind) => device = behind,
                None => return next,
            }
        }
        device.relay.listen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAIN: [&str; 2] = [
        "listen = \"127.0.0.1:51000\"\nnext = \"127.0.0.1:51001\"\nlog = \"/a\"\nmedia = \"dram\"\n",
        "listen = \"127.0.0.1:51001\"\nnext = \"127.0.0.1:51500\"\nlog = \"/b\"\nmedia = \"dram\"\n",
    ];

    fn checked(sections: [&str; 2]) -> Result<(), String> {
        let mut devices = Devices::default();
        for (name, text) in ["device.1", "device.2"].into_iter().zip(sections) {
            let added = devices.add(name, toml::from_str(text).unwrap());
            added.map_err(|error| error.0)?;
        }
        devices.go_together().map_err(|error| error.0)
    }

    /// Regression test: `pmnet check` accepted two devices with one id in one chain, and two devices with one log.
    #[test]
    fn devices_of_one_file_have_their_own_logs_and_ids() {
        assert_eq!(checked(CHAIN), Ok(()));
        let own = CHAIN.map(|text| format!("{text}id = 7\n"));
        let [first, second] = own.each_ref().map(String::as_str);
        let refused = checked([first, second]).unwrap_err();
        let text = "[device.1] and [device.2] have id 7 in shard 0: ";
        assert!(refused.starts_with(text), "{refused}");
        // Another shard, or another chain, can have the same id.
        assert_eq!(checked([first, &format!("{second}shard = 1\n")]), Ok(()));
        let apart = first.replace("51001", "51501");
        assert_eq!(checked([&apart, second]), Ok(()));
        // The default id is the port, which devices of several hosts can have in common.
        let elsewhere = first.replace("127.0.0.1:51000", "127.0.0.2:51001");
        let elsewhere = elsewhere.replace("id = 7\n", "");
        assert!(checked([&elsewhere, CHAIN[1]]).is_err());
        let refused = checked([CHAIN[0], &CHAIN[1].replace("/b", "/a")]).unwrap_err();
        let text = "[device.1] and [device.2] have the log /a: ";
        assert!(refused.starts_with(text), "{refused}");
    }

    /// A circle of next hops is a mistake that the server reports; here it must only end.
    #[test]
    fn a_circle_of_devices_ends() {
        let circle = CHAIN[1].replace("51500", "51000");
        assert_eq!(checked([CHAIN[0], &circle]), Ok(()));
    }

    #[test]
    fn an_empty_path_of_the_log_is_refused() {
        let refused = checked([&CHAIN[0].replace("/a", ""), CHAIN[1]]).unwrap_err();
        assert!(refused.contains("--log is empty"), "{refused}");
    }
}
