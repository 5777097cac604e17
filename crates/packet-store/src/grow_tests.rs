use super::*;
use crate::geometry::{FRAMES_MIN, LINES_MIN};

#[test]
fn what_is_larger_fits_and_keeps_everything() {
    let frames = [FRAMES_MIN, 1000, 1 << 20];
    for (frames, frame_bytes, log_entries) in frames
        .into_iter()
        .flat_map(|n| [(n, 2048, 0), (n, 4096, 0), (n, 2048, 64), (n, 4096, 1024)])
    {
        for lines in [LINES_MIN, 12_800] {
            let old = Geometry {
                lines,
                frames,
                frame_bytes,
                log_entries,
            };
            let has = to_u64(old.image_bytes());
            for size in [
                has * 5 / 4 + (1 << 20),
                has * 2 + (4 << 20),
                has * 50 + (9 << 20) + 77,
            ] {
                let new = old.grown(size).unwrap();
                let takes = to_u64(new.image_bytes());
                assert!(
                    takes <= size && takes * 10 > size * 9,
                    "{old:?}, {size}: {new:?}"
                );
                assert!(
                    new.frames > old.frames && new.lines >= old.lines,
                    "{old:?}: {new:?}"
                );
                // A store with many short records keeps at least its number of lines for each frame.
                let lines = u64::from(old.lines) * u64::from(new.frames) / u64::from(old.frames);
                assert!(u64::from(new.lines) + 64 > lines, "{old:?}: {new:?}");
                assert_eq!(
                    (new.frame_bytes, new.log_entries),
                    (frame_bytes, log_entries)
                );
            }
            for size in [0, 1, has / 2, has, u64::MAX] {
                let refused = old.grown(size).unwrap_err();
                assert!(
                    matches!(refused, OpenError::Geometry { .. }),
                    "{size}: {refused}"
                );
            }
        }
    }
}

#[test]
fn a_region_takes_as_many_bytes_as_was_said() {
    for (size, frame_bytes, entries) in [
        (1 << 20, 2048, 64),
        (32 << 20, 2048, 1024),
        (1 << 30, 4096, 16_384),
        (4 << 30, 4096, 16_384),
        ((4 << 30) + 77, 2048, 32_768),
    ] {
        let region = Geometry::shared_for_size(size, frame_bytes, entries).unwrap();
        let takes = to_u64(region.image_bytes());
        assert!(
            takes <= size && size - takes < 3 * u64::from(frame_bytes),
            "{size}: {takes}"
        );
        // If the given size is that of the result's own image, the result is the same region.
        assert_eq!(
            Geometry::shared_for_size(takes, frame_bytes, entries).unwrap(),
            region
        );
    }
    for size in [0, 100_000, u64::MAX] {
        let refused = Geometry::shared_for_size(size, 4096, 1024).unwrap_err();
        assert!(
            matches!(refused, OpenError::Geometry { .. }),
            "{size}: {refused}"
        );
    }
}
