"""Chat templates that loop, call, copy and pad without end, alone and within each other."""

from children import rendered
from fuzzing import cases, in_child


def listed(text: str) -> list[str]:
    return [part for line in text.strip().splitlines() for part in line.strip().split(" ; ")]


NUMBERS = listed("0 ; 1 ; -1 ; 3 ; 60 ; 999 ; 99999 ; -99999 ; 999999999 ; 10 ** 400 ; 1.5 ; n.i ; loop.index")
TEXTS = listed("""
    '' ; 'a' ; 'ab c\\n' ; '%s%s' ; '%0999999999d' ; '%*d' ; '{}{0:999999}' ; '{0.x}{0.x}' ; 'é' ; n.x ; m
    messages[0].content ; 'a' * 999 * 999 ; ('%(a)s' * 999) ; ('<' * 999)|e ; ('{}' * 999)|safe
""")
LISTS = listed("""
    [] ; [n.x] ; (n.x, n.x) ; messages ; range(99999) ; range(99999)|list ; [[1]] * 9999 ; n.y ; varargs ; kwargs
    {'a': n.x} ; {n.x: n.y}.items() ; dict(a=n.y) ; dict.fromkeys(range(99999)) ; n.y.items() ; n.x.split()
""")
FILTERS = listed("""
    upper ; list ; string ; tojson ; tojson(indent=I) ; join ; join(T) ; map('upper') ; map('list') ; sort ; unique
    reverse ; sum(start=L) ; indent(I) ; indent(T) ; replace(T, T) ; format(T, I) ; format(a=T) ; center(I)
    round(I) ; round(I, 'ceil') ; int ; int(base=36) ; length ; first ; select('in', L) ; groupby(0) ; e
    dictsort ; trim ; default(T) ; truncate(I) ; items ; safe
    attr('format') ; map(attribute='x')|list ; max ; title ; last
""")
METHODS = listed("""
    upper() ; center(I) ; ljust(I) ; zfill(I) ; expandtabs(I) ; replace(T, T) ; join(L) ; join(T) ; split() ; split(T)
    splitlines() ; format(T) ; format(n) ; format(a=T) ; format_map(L) ; encode() ; items() ; x ; translate({97: T})
    count(T) ; to_bytes(I) ; append(T) ; __class__ ; partition(T) ; find(T) ; values()
""")
OPERATORS = listed("+ ; ~ ; * ; ** ; % ; / ; // ; - ; == ; < ; in ; and ; or")
STATEMENTS = listed("""
    {% for i in L %}S{% endfor %} ; {% for i in range(99999) %}S{% endfor %}
    {% for i in T %}{{ loop.length }}S{% endfor %} ; {% set n.x = E %}S
    {% for i in range(60) %}{% set n.x = n.x ~ n.x %}S{% endfor %} ; {% if E %}S{% else %}S{% endif %}
    {% for i in range(60) %}{% set n.x = E %}{% set n.y = [n.y, n.x] %}{% endfor %}{{ n.x }}S ; {% set n.y = L %}S
    {% for i in range(99999) %}{% set n.y = [n.y] %}{% endfor %}S ; {% filter F %}S{% endfilter %} ; {{ L }}S ; {{ E }}S
    {% for i in range(60) %}{% set n.x %}{{ n.x }}S{{ n.x }}{% endset %}{% endfor %}
    {{ strftime_now(T) }}S ; {{ raise_exception(T) }}
    {% macro f(m) %}{% if m %}{{ f(m - 1) }}S{{ f(m - 1) }}{% endif %}{% endmacro %}{{ f(60) }}
    {% macro f() %}{% set n.y = varargs, kwargs %}{% endmacro %}{% for i in L %}{{ f(n.y, a=n.x) }}{% endfor %}
    {% macro f() %}{{ caller() }}S{{ caller() }}{% endmacro %}{% call f() %}{% call f() %}S{% endcall %}{% endcall %}
    {% for i in L recursive %}{{ loop(L) if loop.depth < I }}S{% endfor %} ; {% autoescape true %}S{% endautoescape %}
    {% generation %}S{% endgeneration %} ; {{ n }}{{ [n] }}S ; {{ cycler(L, T).next() }}S
""")


def expression(rng, depth: int) -> str:
    """Any value."""
    if depth <= 0:
        return rng.choice(rng.choice([NUMBERS, TEXTS, LISTS]))
    left = expression(rng, depth - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return f"({left} {rng.choice(OPERATORS)} {expression(rng, depth - 2)})"
    if kind == 1:
        return filled(rng, f"({left})|{rng.choice(FILTERS)}", depth)
    if kind == 2:
        return filled(rng, f"({left}).{rng.choice(METHODS)}", depth)
    return f"({left})[{rng.choice(['1:', '::-1', '0', ':99999'])}]"


def filled(rng, pattern: str, depth: int) -> str:
    """A pattern with its places taken: S statements, E any value, I a number, T a text, L a list, F a filter."""
    makers = {
        "S": lambda: statement(rng, depth - 1),
        "E": lambda: expression(rng, min(depth, 3)),
        "I": lambda: rng.choice(NUMBERS),
        "T": lambda: rng.choice(TEXTS),
        "L": lambda: rng.choice(LISTS) if depth < 2 else f"({rng.choice(LISTS)})|{filled(rng, rng.choice(FILTERS), 0)}",
        "F": lambda: filled(rng, rng.choice(FILTERS), 0),
    }
    return "".join(makers[letter]() if letter in makers else letter for letter in pattern)


def statement(rng, depth: int) -> str:
    return filled(rng, rng.choice(STATEMENTS), depth) if depth > 0 else rng.choice(["", "text", "{{ n.x }}"])


@cases(200)
def test_no_template_takes_the_machine(chance):
    body = "".join(statement(chance, chance.randint(1, 4)) for _ in range(chance.randint(1, 3)))
    template = "{% set n = namespace(x='ab', y=(), i=5) %}" + body
    in_child(rendered, template, chance.choice(["Hi", "word " * 2000])).assert_sound(template)
