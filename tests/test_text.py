import pytest

from finite.data.text import Text, TextError, decode, printable, read_text, whole

LINE = "Katze \u00e9t\u00e9, 1 2 3\n"


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_is_read_without_a_word(codec):
    text = decode(LINE.encode(codec))
    assert text.text == LINE and text.code_page is None


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_told_by_its_zeros(codec):
    assert decode(LINE.encode(codec)).text == LINE


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("caf\u00e9 cr\u00e8me", "cp1252"),
        ("\u043a\u043e\u0448\u043a\u0430 \u0438 \u0441\u043e\u0431\u0430\u043a\u0430", "cp1251"),
        ("\u56fe\u7247 \u732b \u6807\u6ce8", "gb18030"),
        ("\u306d\u3053\u306e\u5199\u771f", "shift_jis"),
    ],
)
def test_a_legacy_code_page_is_guessed_and_named(text, codec):
    found = decode(text.encode(codec))
    assert (found.text, found.code_page) == (text, codec)


def test_a_declared_code_page_goes_before_the_guess_but_not_before_utf8():
    assert decode("\u00e9".encode("latin-1"), "iso-8859-1") == Text("\u00e9")
    assert decode("\u732b".encode("gb2312"), "gb2312") == Text("\u732b")  # two bytes that are UTF-8 as well
    assert decode("\u56fe\u7247".encode(), "gb18030") == Text("\u56fe\u7247")  # three bytes each: UTF-8 after all
    assert decode("\u00e9".encode(), "iso-8859-1").text == "\u00e9"
    assert decode("\u00e9".encode("cp1252"), "no-such-codec").text == "\u00e9"


def test_binary_and_oversized_files_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(TextError, match="binary"):
        read_text(tmp_path / "a", 1 << 20)
    with pytest.raises(TextError, match="larger than 100 bytes"):
        read_text(tmp_path / "a", 100)
    with pytest.raises(TextError, match="cannot be read"):
        read_text(tmp_path / "none", 100)


def test_control_and_half_characters_become_harmless():
    assert printable("a\x1b[31mb") == "a\\x1b[31mb" and printable("caf\u00e9") == "caf\u00e9"
    assert whole("a\ud800b") == "a?b"
