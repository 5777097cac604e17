use super::*;
use crate::Kind;

/// The 64 outputs published with SipHash: key 00 01 … 0f, inputs of 0 to 63 bytes 00 01 ….
const PUBLISHED: [u64; 64] = [
    0x310e_0edd_47db_6f72,
    0xfd67_dc93_c539_f874,
    0x5a4f_a9d9_0980_6c0d,
    0x2d7e_fbd7_9666_6785,
    0xb787_7127_e094_27cf,
    0x8da6_99cd_6455_7618,
    0xcee3_fe58_6e46_c9cb,
    0x37d1_018b_f500_02ab,
    0x6224_939a_79f5_f593,
    0xb0e4_a90b_df82_009e,
    0xf3b9_dd94_c5bb_5d7a,
    0xa7ad_6b22_462f_b3f4,
    0xfbe5_0e86_bc8f_1e75,
    0x903d_84c0_2756_ea14,
    0xeef2_7a8e_90ca_23f7,
    0xe545_be49_61ca_29a1,
    0xdb9b_c257_7fcc_2a3f,
    0x9447_be2c_f5e9_9a69,
    0x9cd3_8d96_f0b3_c14b,
    0xbd61_79a7_1dc9_6dbb,
    0x98ee_a21a_f25c_d6be,
    0xc767_3b2e_b0cb_f2d0,
    0x883e_a3e3_9567_5393,
    0xc8ce_5ccd_8c03_0ca8,
    0x94af_49f6_c650_adb8,
    0xeab8_858a_de92_e1bc,
    0xf315_bb5b_b835_d817,
    0xadcf_6b07_6361_2e2f,
    0xa5c9_1da7_acaa_4dde,
    0x7165_9587_6650_a2a6,
    0x28ef_495c_53a3_87ad,
    0x42c3_41d8_fa92_d832,
    0xce7c_f272_2f51_2771,
    0xe378_59f9_4623_f3a7,
    0x3812_05bb_1ab0_e012,
    0xae97_a10f_d434_e015,
    0xb4a3_1508_beff_4d31,
    0x8139_6229_f090_7902,
    0x4d0c_f49e_e5d4_dcca,
    0x5c73_336a_76d8_bf9a,
    0xd0a7_0453_6ba9_3e0e,
    0x9259_58fc_d642_0cad,
    0xa915_c29b_c806_7318,
    0x952b_79f3_bc0a_a6d4,
    0xf21d_f2e4_1d45_35f9,
    0x8757_7519_048f_53a9,
    0x10a5_6cf5_dfcd_9adb,
    0xeb75_095c_cd98_6cd0,
    0x51a9_cb9e_cba3_12e6,
    0x96af_adfc_2ce6_66c7,
    0x72fe_5297_5a43_64ee,
    0x5a16_45b2_76d5_92a1,
    0xb274_cb8e_bf87_870a,
    0x6f9b_b420_3de7_b381,
    0xeaec_b2a3_0b22_a87f,
    0x9924_a43c_c131_5724,
    0xbd83_8d3a_afbf_8db7,
    0x0b1a_2a32_65d5_1aea,
    0x1350_79a3_231c_e660,
    0x932b_2846_e4d7_0666,
    0xe191_5f5c_b1ec_a46c,
    0xf325_965c_a16d_629f,
    0x575f_f28e_6038_1be5,
    0x7245_06eb_4c32_8a95,
];

fn counting(bytes: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().take(bytes).collect()
}

fn reference_key() -> Key {
    Key(counting(KEY_BYTES).try_into().unwrap())
}

#[test]
fn the_hash_is_siphash_2_4_as_published() {
    for (bytes, expected) in PUBLISHED.iter().enumerate() {
        let mut hasher = reference_key().hasher();
        hasher.write(&counting(bytes));
        assert_eq!(
            hasher.finish().to_le_bytes(),
            expected.to_be_bytes(),
            "{bytes} bytes"
        );
    }
}

#[test]
fn the_parts_in_which_a_packet_is_hashed_do_not_matter() {
    let whole = counting(88 + 1344);
    for payload in [0, 1, 7, 8, 9, 63, 100, 1344] {
        let mut one = reference_key().hasher();
        one.write(&whole[..88 + payload]);
        for cut in [0, 1, 7, 8, 88, 88 + payload] {
            let mut two = reference_key().hasher();
            two.write(&whole[..cut]);
            two.write(&whole[cut..88 + payload]);
            assert_eq!(one.finish(), two.finish(), "{payload} bytes, cut at {cut}");
        }
    }
}

const LIFE: Life = Life { shard: 7, token: 5 };

fn cluster() -> ClusterKey {
    ClusterKey::new(*b"0123456789abcdef")
}

#[test]
fn each_leg_sender_epoch_life_and_session_has_a_key_of_its_own() {
    let cluster = cluster();
    let front = cluster.front(cluster.front_id(b"web")).unwrap();
    let other = cluster.front(cluster.front_id(b"web-2")).unwrap();
    let mut keys: Vec<[u8; KEY_BYTES]> = vec![*cluster.bytes(), *front.bytes(), *other.bytes()];
    for (shard, token) in [(0, 1), (1, 1), (0, 2)] {
        for front in [front, other] {
            let session = front.session(shard, token);
            keys.extend([*session.to_head.bytes(), *session.to_client.bytes()]);
        }
    }
    for (shard, epoch, sender) in [(0, 1, 1), (1, 1, 1), (0, 2, 1), (0, 1, 2), (0, 1, 0)] {
        for token in [0, 1, 2] {
            let life = Life { shard, token };
            keys.push(*cluster.hop(life, epoch, sender).bytes());
        }
    }
    for (shard, sender) in [(0, 1), (1, 1), (0, 2), (1, 0)] {
        keys.push(*cluster.asking(shard, sender).bytes());
    }
    let different: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(different.len(), keys.len());
}

#[test]
fn the_id_of_a_front_says_of_which_cluster_it_is() {
    let (mine, theirs) = (cluster(), ClusterKey::new([7; KEY_BYTES]));
    let id = mine.front_id(b"web");
    assert_eq!(mine.front(id).unwrap().id(), id);
    assert_eq!(theirs.front(id), None);
    assert_ne!(mine.front_id(b"web"), mine.front_id(b"web-2"));
    let read = FrontKey::new(id, *mine.front(id).unwrap().bytes());
    assert_eq!(read, mine.front(id).unwrap());
}

#[test]
fn whatever_changes_in_a_packet_is_noticed() {
    let key = cluster().hop(LIFE, 3, 11);
    let payload = counting(24);
    let header = Header {
        shard: 7,
        epoch: 3,
        tag: 99,
        ..Header::new(Kind::Append)
    }
    .for_payload(&payload);
    let sealed = key.seal(&header, &payload);
    let mut datagram = Vec::new();
    datagram.extend_from_slice(&sealed.emit());
    datagram.extend_from_slice(&payload);
    assert!(key.verifies(&Packet::parse(&datagram).unwrap()));
    for bit in 0..8 * datagram.len() {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // An adversary makes the checksums right.
        let (head, rest) = changed.split_at_mut(crate::HEADER_LEN);
        let crc = crate::crc(rest);
        if bit / 8 >= crate::HEADER_LEN {
            head[72..76].copy_from_slice(&crc.to_be_bytes());
        }
        let crc = crc32c::crc32c_append(crate::crc(&head[..76]), &head[80..]);
        head[76..80].copy_from_slice(&crc.to_be_bytes());
        let in_crc = (76..80).contains(&(bit / 8));
        let accepted = Packet::parse(&changed).is_ok_and(|packet| key.verifies(&packet));
        assert_eq!(accepted, in_crc, "bit {bit}: only the checksum is no part");
    }
    let other = cluster().hop(LIFE, 4, 11);
    assert!(!other.verifies(&Packet::parse(&datagram).unwrap()));
}

/// An attacker can make another payload with the checksum of a payload that he has seen: adding the bits of CRC-32C's
/// polynomial anywhere leaves the checksum unchanged. So it is not enough that the MAC covers the header, which has the
/// payload's checksum.
#[test]
fn another_payload_with_the_same_checksum_is_noticed() {
    let key = cluster().hop(LIFE, 3, 11);
    let payload = counting(24);
    let sealed = key.seal(&Header::new(Kind::Append).for_payload(&payload), &payload);
    // The polynomial's highest power comes first, because the reflected checksum takes the lowest bit of a byte first.
    let polynomial = (1 | 0x82f6_3b78_u64 << 1).to_le_bytes();
    for at in 0..payload.len() - 4 {
        let mut other = payload.clone();
        for (byte, bits) in other[at..].iter_mut().zip(polynomial) {
            *byte ^= bits;
        }
        let mut datagram = sealed.emit().to_vec();
        datagram.extend_from_slice(&other);
        let packet = Packet::parse(&datagram).expect("its checksums are right");
        assert!(!key.verifies(&packet), "from byte {at} on");
    }
}

#[test]
fn no_key_is_shown_by_accident() {
    let shown = format!("{:?} {:?}", cluster(), cluster().hop(LIFE, 1, 1));
    assert_eq!(shown, "ClusterKey(Key(…)) MacKey(Key(…))");
}
