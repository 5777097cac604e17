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
            let has = match log_entries {
                0 => to_u64(old.image_bytes()),
                _ => u64::from(frames) * u64::from(frame_bytes),
            };
            for size in [
                has * 5 / 4 + (1 << 20),
                has * 2 + (4 << 20),
                has * 50 + (9 << 20) + 77,
            ] {
                let new = old.grown(size).unwrap();
                let takes = match log_entries {
                    0 => to_u64(new.image_bytes()),
                    _ => u64::from(new.frames) * u64::from(frame_bytes),
                };
                assert!(
                    takes <= size && takes * 10 > size * 9,
                    "{old:?}, {size}: {new:?}"
                );
                assert!(
                    new.frames > old.frames && new.lines >= old.lines,
                    "{old:?}: {new:?}"
                );
                // A store with many short records has no fewer lines for each frame than it had.
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
