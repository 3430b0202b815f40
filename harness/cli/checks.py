"""Every YAML the harness relies on, checked in one go; what `harness validate` and the tests call."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness import DEFAULT_DATASET, DEFAULT_METHOD, metrics
from harness.data.card import card_paths, load_card, read_card
from harness.data.prepare import resolve
from harness.errors import UserError, unknown_name
from harness.experiments.sweep.space import check_declared, parse_over
from harness.experiments.tune import read_tuning, tunings
from harness.report.claims import CLAIMS, NAMED, TRANSFORMER, Claims, read_claims
from harness.settings import published
from harness.settings.layers import Layer, read_config_file, resolve_layers
from harness.settings.method import METHOD_FOLDER, load_method, method_layer, methods
from harness.settings.papers import PAPER_FOLDER, SHARED, claims, own_claims, presets, settings_of
from harness.settings.schema import Settings

Subject = TypeVar("Subject")


def validate_all(files: list[Path]) -> tuple[dict[str, int], list[str]]:
    """Counts of what was checked, and one line per fault."""
    cards = card_paths()
    names = [path.stem for path in sorted(METHOD_FOLDER.glob("*.yaml"))]
    faults: list[str] = []
    for path in cards.values():
        faults += _faults_of(check_card, path)
    for name in names:
        faults += [*_faults_of(check_method, name), *_faults_of(check_search, name)]
    rows = {published.PUBLISHED_FOLDER: 0, published.TUNED_FOLDER: 0}
    for path in published.table_paths().values():
        found, wrong = check_published(path)
        rows[path.parent] = rows.get(path.parent, 0) + found
        faults += wrong
    for name in (SHARED, *presets()):
        faults += _faults_of(check_paper, name)
    for name in tunings():
        faults += _faults_of(check_tuning, name)
    faults += _faults_of(check_claims, CLAIMS)
    for file in files:
        faults += _faults_of(check_config, file)
    printed, tuned = rows[published.PUBLISHED_FOLDER], rows[published.TUNED_FOLDER]
    counts = {"cards": len(cards), "methods": len(names), "papers": len(presets())}
    counts |= {"published rows": printed, "tuned rows": tuned}
    return counts | {"configs": len(files)}, faults


def check_tuning(name: str) -> None:
    """A table that is to be tuned must parse, and the ranges of its rows must be ones their methods take."""
    tuning = read_tuning(name)
    for dataset in tuning.seeds:
        resolve(dataset)
    for row in tuning.rows:
        method = load_method(row.method)
        layer = Layer(f"methods/tuning/{name}.yaml: {row.row}", row.settings)
        resolve_layers([method_layer(row.method), layer], method.params)
        if row.over:
            parse_over(row.over, row.method, method.params, [layer])


def _check_accounts(file: str, claims: Claims) -> None:
    """Accounts and reruns must be of datasets that exist, and every rerun must name runs of its dataset."""
    accounts = [name for name in claims.accounts if name != TRANSFORMER]
    for key, datasets in (("accounts", accounts), ("reruns", claims.reruns)):
        for dataset in datasets:
            try:
                resolve(dataset)
            except UserError as error:
                raise UserError(f"{file}: {key}: {error}") from None
    for dataset, account in claims.reruns.items():
        named = NAMED.findall(account)
        if not named:
            raise UserError(f"{file}: reruns: {dataset} names no run; write its id in braces for its figures")
        if strange := [name for name in named if f"-{dataset}-s" not in name]:
            raise UserError(f"{file}: reruns: {dataset} names {', '.join(map(repr, strange))}, which is no run on it")


def check_paper(name: str) -> None:
    """What is written of a paper must be of settings of its method and of cards that exist."""
    path = PAPER_FOLDER / f"{name}.yaml"
    known = {one for preset in ([name] if name != SHARED else presets()) for one in settings_of(preset)}
    for setting, entries in own_claims(name).items():
        if setting not in known:
            raise UserError(f"{path}: {unknown_name('setting', setting, known)}")
        for dataset in (dataset for entry in entries for dataset in entry.on):
            if dataset not in card_paths():
                raise UserError(f"{path}: {setting}: {unknown_name('dataset', dataset, card_paths())}")
    if name != SHARED:
        claims(name)


def check_claims(path: Path) -> None:
    """Claims must name tables and rows that exist; those of our own tables may still have to be searched."""
    own = {name: [row.row for row in read_tuning(name).rows] for name in tunings()}
    known = [*own, *published.table_paths()]
    written = read_claims(path)
    _check_accounts(path.name, written)
    for claim in written.claims:
        for test in claim.tests:
            if test.table not in known:
                raise unknown_name(f"table of the claim {claim.claim!r}", test.table, known)
            rows = own.get(test.table) or [row.stem for row in published.published_table(test.table).rows]
            for row in (test.ahead, test.behind):
                if row not in rows:
                    raise unknown_name(f"row of {test.table}", row, dict.fromkeys(rows))


def check_card(path: Path) -> None:
    """A card must parse; its `defaults` must be settings of a run, its `recommended` ones those of its methods."""
    card = read_card(path)
    resolve_layers([Layer(f"{path}: defaults", card.defaults)], Settings)
    for name, settings in card.recommended.items():
        if any(key.startswith("lr_") for key in settings) and "encoder" not in settings:
            raise UserError(
                f"{path}: recommended.{name}: a learning rate belongs to an encoder; name it beside the rate"
            )
        if name in methods():
            layer = Layer(f"{path}: recommended.{name}", settings)
            resolve_layers([method_layer(name), layer], load_method(name).params)


def check_method(name: str) -> None:
    """A method's YAML must resolve, and its class must document every parameter."""
    method, layer = load_method(name), method_layer(name)
    resolve_layers([layer], method.params)
    silent = [field.alias or key for key, field in method.params.model_fields.items() if not field.description]
    if silent:
        raise UserError(f"method {name}: parameters without a line of documentation: {', '.join(silent)}")


def check_search(name: str) -> None:
    """The ranges that a method declares for sweeps must be of its parameters, and their values ones that it takes."""
    check_declared(name, load_method(name).params)


def check_published(path: Path) -> tuple[int, list[str]]:
    """A published table's number of rows and its faults; each row must be plausible and, given a method, resolve."""
    try:
        table = published.read_table(path)
    except UserError as error:
        return 0, str(error).splitlines()
    known = [*published.COLUMNS, *metrics.names(metrics.DEFAULT_KS, weighted=True)]
    faults = [f"{path}: {unknown_name('column', name, known)}" for name in table.metrics if name not in known]
    for row in table.rows:
        faults += [*published.implausible(row), *_faults_of(check_published_row, row)]
    return len(table.rows), faults


def check_published_row(row: published.PublishedRow) -> None:
    """The dataset must have a card, and the settings must be those of the method and report the row's scorer."""
    if row.method is None:
        load_card(row.dataset)
        return
    from harness.run import resolve_config

    config, _ = resolve_config(row.method, row.dataset, [published.layer(row)])
    scorer = config.params.get("scorer", row.scorer)
    if scorer != row.scorer:
        raise UserError(f"{row.name}: scorer is {row.scorer}, but the settings report the scorer {scorer}")


def check_config(path: Path) -> None:
    """A config file must name known things and hold known keys."""
    from harness.run import resolve_config

    layer = read_config_file(path)
    named = {"method": DEFAULT_METHOD, "dataset": DEFAULT_DATASET} | layer.values
    resolve_config(str(named["method"]), str(named["dataset"]), [layer])


def _faults_of(check: Callable[[Subject], object], subject: Subject) -> list[str]:
    try:
        check(subject)
    except UserError as error:
        return str(error).splitlines()
    return []
