"""A page is written to its file whole or not at all."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from attention_pages import names, softmax

from minibert.errors import MinibertError
from minibert.viz import attention_page
from minibert.viz.document import write_page


class TestSave:
    def test_writes_the_page_and_returns_its_path(self, tmp_path: Path) -> None:
        path = write_page(["<p>½</p>"], str(tmp_path / "page.html"))
        assert path.read_bytes() == "<p>½</p>".encode()
        assert os.listdir(tmp_path) == ["page.html"]

    def test_a_page_is_saved_as_its_text(self, tmp_path: Path) -> None:
        page = attention_page(softmax((1, 2, 3, 3)), names(3))
        assert page.save(tmp_path / "page.html").read_text(encoding="utf-8") == page.html

    def test_a_piece_that_cannot_be_made_leaves_the_old_page(self, tmp_path: Path) -> None:
        path = write_page(["old"], tmp_path / "page.html")

        def pieces() -> Iterator[str]:
            yield "new"
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_page(pieces(), path)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["page.html"]

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MinibertError, match=r"page\.html: there is no folder .*absent"):
            write_page([""], tmp_path / "absent" / "page.html")

    def test_a_folder_is_no_page(self, tmp_path: Path) -> None:
        with pytest.raises(MinibertError, match="it is a folder"):
            write_page([""], tmp_path)

    def test_a_full_disk_leaves_the_old_page_and_nothing_else(self, tmp_path: Path) -> None:
        path = write_page(["old"], tmp_path / "page.html")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(MinibertError, match=r"cannot save .*page\.html: File too large"):
                write_page(["new" * 4096], path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["page.html"]

    def test_a_link_stays_a_link_and_its_target_gets_the_page(self, tmp_path: Path) -> None:
        target, link = tmp_path / "target.html", tmp_path / "link.html"
        target.write_text("old")
        link.symlink_to(target.name)
        assert write_page(["new"], link) == link
        assert link.is_symlink()
        assert target.read_text() == "new"

    @pytest.mark.parametrize("mode", [0o600, 0o640])
    def test_a_file_keeps_its_permissions(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "page.html"
        path.touch()
        path.chmod(mode)
        write_page(["new"], path)
        assert path.stat().st_mode & 0o777 == mode
        assert path.read_text() == "new"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
    def test_a_pipe_is_written_to_and_stays_a_pipe(self, tmp_path: Path) -> None:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            write_page(["<p>½</p>"], path)
            assert os.read(reader, 64) == "<p>½</p>".encode()
        finally:
            os.close(reader)
        assert path.is_fifo()
        assert os.listdir(tmp_path) == ["pipe"]

    def test_a_descriptor_of_a_pipe_is_written_to(self) -> None:
        reader, writer = os.pipe()
        if not Path(f"/dev/fd/{writer}").exists():
            pytest.skip("the system has no /dev/fd")
        try:
            write_page(["page"], f"/dev/fd/{writer}")
            assert os.read(reader, 64) == b"page"
        finally:
            os.close(reader)
            os.close(writer)
