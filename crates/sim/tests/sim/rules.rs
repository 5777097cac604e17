//! The names of rules and cells. That each rule is missed when it is switched off, `pmnet-sim --without all` shows (`make rules`, `make test`).

use pmnet_sim::Without;
use pmnet_sim::cells::Cell;

#[test]
fn rules_and_cells_have_names() {
    for without in Without::ALL {
        let again: Without = without.name.parse().unwrap();
        assert_eq!(again.place, without.place);
        assert!(without.says.contains('§'), "{}", without.name);
    }
    assert!("gravity".parse::<Without>().is_err());
    assert_eq!(Cell::all().count(), 80);
    for cell in Cell::all() {
        assert_eq!(cell.to_string().parse(), Ok(cell));
    }
    let error = "log-full/meteor".parse::<Cell>().unwrap_err();
    assert!(error.contains("server-crash"), "{error}");
}
