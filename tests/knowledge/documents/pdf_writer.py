"""Write small PDFs for tests: lines of text at places, in a standard font, and ruled lines."""

from collections.abc import Sequence

PAGE_HEIGHT = 800
Text = tuple[float, float, float, str]
"""Left edge, distance from the top, size, text."""


def write_pdf(
    pages: Sequence[Sequence[Text]], *, info: str = "", trailer: str = "", rules: Sequence[tuple[float, ...]] = ()
) -> bytes:
    """Write a PDF.

    Args:
        pages: The texts of each page.
        info: Entries of the information dictionary, as in "/Title (Fees)".
        trailer: More entries of the trailer.
        rules: Lines on each page: x0, y0, x1, y1, from the top.
    """
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    objects.append(f"<< {info} >>")
    numbers = []
    for texts in pages:
        lines = [f"{x0} {PAGE_HEIGHT - y0} m {x1} {PAGE_HEIGHT - y1} l S" for x0, y0, x1, y1 in rules]
        lines += [f"BT /F {size} Tf {left} {PAGE_HEIGHT - top} Td ({text}) Tj ET" for left, top, size, text in texts]
        stream = "\n".join(lines)
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        resources = "<< /Font << /F 3 0 R >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 {PAGE_HEIGHT}] /Contents {len(objects)} 0 R "
            f"/Resources {resources} >>"
        )
        numbers.append(len(objects))
    objects[1] = f"<< /Type /Pages /Count {len(numbers)} /Kids [{' '.join(f'{number} 0 R' for number in numbers)}] >>"
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(f"{offset:010} 00000 n \n".encode() for offset in offsets)
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 4 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n"
    return out + end.encode("latin-1")
