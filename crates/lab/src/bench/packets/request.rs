//! Requests and answers. A request has a number, and bytes that are derived from it, so that both ends can check the
//! request.

/// Size of a request's number in bytes.
const NUMBER: usize = 8;
/// Size of an answer in bytes: the request's number, and the order under which the server stored the request.
pub const ANSWER_BYTES: usize = 16;

/// Writes this number and the derived bytes into a request.
///
/// # Panics
/// Panics if the request is shorter than a number.
pub fn write(request: &mut [u8], number: u64) {
    let (head, rest) = request.split_at_mut(NUMBER);
    head.copy_from_slice(&number.to_be_bytes());
    rest.fill(filling(number));
}

/// Returns the number of a request of this length; `None` if the contents differ from those that were sent.
pub fn read(request: &[u8], bytes: usize) -> Option<u64> {
    let number = number(request)?;
    let whole = request.len() == bytes
        && request[NUMBER..]
            .iter()
            .all(|byte| *byte == filling(number));
    whole.then_some(number)
}

/// Returns the number of a request. The contents are not checked.
pub fn number(request: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*request.first_chunk()?))
}

/// Returns the byte with which a request is filled. All bytes are equal, so that the client can fill a request quickly.
fn filling(number: u64) -> u8 {
    number.to_be_bytes()[NUMBER - 1] | 1
}

/// Returns the answer to a request; order 0 means that the request was not stored.
pub fn answer(number: u64, order: u64) -> [u8; ANSWER_BYTES] {
    let mut answer = [0; ANSWER_BYTES];
    answer[..NUMBER].copy_from_slice(&number.to_be_bytes());
    answer[NUMBER..].copy_from_slice(&order.to_be_bytes());
    answer
}

/// Returns number and order of an answer.
pub fn read_answer(answer: &[u8]) -> Option<(u64, u64)> {
    let answer: &[u8; ANSWER_BYTES] = answer.try_into().ok()?;
    Some((number(answer)?, number(&answer[NUMBER..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_is_seen() {
        let mut request = [0; 64];
        write(&mut request, 77);
        assert_eq!(read(&request, 64), Some(77));
        assert_eq!(read(&request, 65), None);
        request[63] ^= 1;
        assert_eq!(read(&request, 64), None);
        assert_eq!(read_answer(&answer(5, 9)), Some((5, 9)));
        assert_eq!(read_answer(&[0; 15]), None);
    }
}
