"""Templates of our own, each for a construct or two; compare_templates.py --fixture asks jinja2 what they give.

An error counts as an answer: the template is then to be refused.
"""

CONTEXT = {
    "messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi\n"},
                 {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"}, {"role": "user", "content": "你好 Zürich 😀"}],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "It's <b>\"now\"</b>\t\\",
                                                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],
    "s": "  Hello, World  ", "u": "naïve Zürich 你好 😀", "e": "", "n": 7, "z": 0, "f": 2.5, "t": True, "nothing": None,
    "list": [3, 1, 2], "words": ["b", "A", "c", "a"], "d": {"b": 2, "A": 1, "items": "mine", "n": None}, "add_generation_prompt": True,
}

EXPRESSIONS = """
1 + 2 * 3 - 4 / 2
7 // 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ 7 % 3 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7.5 // 2 ~ ' ' ~ -7.5 % 2
2 ** 10 ~ ' ' ~ 2 ** -1 ~ ' ' ~ -2 ** 2 ~ ' ' ~ 2 ** 3 ** 2
0b101 + 0o17 + 0x1F + 1_000
1e3 ~ ' ' ~ 1.5e-7 ~ ' ' ~ 1e16 ~ ' ' ~ 123456789.123 ~ ' ' ~ 0.1 ~ ' ' ~ 1.0
9223372036854775807
1 / 0
1 // 0
1 % 0
true + true ~ ' ' ~ -true
1 < 2 < 3 ~ ''
1 < 3 < 2
1 == 1.0 == true
'a' < 'b' and 'a' != 'A'
'a' < 1
[1, 2] < [1, 3]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
'x' in 'xyz' and 1 in list and 'b' in d and 9 not in list
1 in 'x'
'a' in nothing
'a' in missing
missing in [missing]
not missing and not nothing and not e and not z and not [] and not {}
1 and 0 or 'x'
nothing or 'else'
'yes' if t else 'no'
'yes' if z
('yes' if z) is defined
1 if 2 if 3 else 4 else 5
s | trim | length
-3 | abs
(-3) | abs
u | length
u[0] ~ u[-1] ~ u[99] ~ '.'
u[2:7] ~ '|' ~ u[::-1] ~ '|' ~ u[-1:] ~ '|' ~ u[:-1:3] ~ '|' ~ u[5:2] ~ '|' ~ u[::-2]
list[::-1] ~ list[1:] ~ list[:-1] ~ list[-2:] ~ list[5:] ~ list[::2]
list[::0]
(1, 2, 3)[1:] ~ range(10)[2:8:3]
messages[0].role ~ messages[-1]['content'] ~ messages[9]
messages[0].missing
messages[0].missing.more
missing.x
missing['x']
missing + 1
missing ~ '.' ~ nothing ~ '.'
missing | default('d') ~ (nothing | default('d')) ~ (e | default('d', true)) ~ missing | d('x')
d.items is defined and d['items'] == 'mine'
d.get('b') ~ d.get('q') ~ d.get('q', 5) ~ d['n'] ~ d.n
d.keys() | list ~ d.values() | list ~ d.items() | list
d.pop('b')
list.append(4)
d.update({})
list.count(1) ~ list.index(2)
list.index(9)
'a' 'b' "c"
'it\\'s' ~ "\\x41\\u00e9\\U0001F600\\101\\q\\n"
'\\ud83d'
[1, 'a', none, true, 1.5, [2], {'k': (1,)}, ()]
["it's", 'say "x"', 'both \\' "', 'b\\x5cs', '\\n\\t', '\\x00', '\\x7f', 'é', '\\u200b', '\\U0001F600']
{'a': 1, 'b': [2, {'c': none}]}
{1: 'a', true: 'b', 1.0: 'c', none: 'd', (1, 2): 'e'}
{[1]: 2}
1, 2
()
(1)
[1, 2,][0]
'%s and %r and %d%%' % ('a', 'b', 3.7)
'%5s|%-5s|%05d|%+d|%x|%X|%o|%.3s' % ('a', 'b', 42, 7, 255, 255, 8, 'abcdef')
'%.2f %8.3f %e %g %G' % (1.005, 3.14159, 12345.678, 0.0001, 1e20)
'%(a)s-%(b)d' % {'a': 'x', 'b': 2}
'%s' % 1
'%s %s' % 'a'
'%d' % 'a'
'%s' % (1, 2)
'{} {}'.format(1, 'a') ~ '{1}{0}'.format('a', 'b') ~ '{a}{b[0]}{c.role}'.format(a=1, b=[2], c=messages[0])
'{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+}|{:,}|{:.2f}|{:x}|{!r}|{{}}'.format('a', 'b', 'c', 'd', 42, 7, 1234567, 2.345, 255, 'q')
'{}'.format()
'{'.format()
'a-b'.replace('-', '+') ~ 'aaa'.replace('a', 'b', 2) ~ 'ab'.replace('', '.')
s.strip() ~ '|' ~ s.lstrip() ~ '|' ~ s.rstrip() ~ '|' ~ s.strip(' Hd') ~ '|' ~ '你好你'.strip('你')
'a,b,,c'.split(',') ~ 'a,b,c'.split(',', 1) ~ ' a  b '.split() ~ ' a  b c '.split(none, 1) ~ 'a,b,c'.rsplit(',', 1) ~ ' a b '.rsplit(none, 1) ~ ''.split() ~ ''.split(',')
'a'.split('')
'a\\nb\\r\\nc\\rd\\n'.splitlines() ~ 'a\\nb'.splitlines(true)
'abc'.startswith('a') ~ 'abc'.startswith(('x', 'ab')) ~ 'abc'.endswith('bc') ~ 'abc'.startswith('b', 1) ~ 'abc'.endswith('b', 0, 2)
'abc'.startswith(['a'])
'abcabc'.find('c') ~ 'abcabc'.rfind('c') ~ 'abc'.find('x') ~ '你好'.find('好') ~ 'abc'.index('b') ~ 'aXbX'.count('X') ~ 'aaa'.count('aa') ~ 'abc'.count('')
'abc'.index('x')
', '.join(['a', 'b']) ~ ''.join([])
','.join([1])
'hello wORLD'.title() ~ "they're".title() ~ 'hELLO'.capitalize() ~ 'ß'.upper() ~ 'ÀÉ'.lower() ~ 'ǆ'.capitalize()
'12'.isdigit() ~ '²'.isdigit() ~ '²'.isdecimal() ~ '½'.isnumeric() ~ 'aé你'.isalpha() ~ 'a1'.isalnum() ~ ' \\t'.isspace() ~ ''.isdigit() ~ 'AB1'.isupper() ~ 'ab1'.islower() ~ '1'.islower()
'ab'.center(5) ~ '|' ~ 'ab'.ljust(4, '.') ~ 'ab'.rjust(4, '.') ~ '-5'.zfill(4) ~ 'a=b=c'.partition('=') ~ 'a=b=c'.rpartition('=') ~ 'x'.partition('=')
'prefix-x'.removeprefix('prefix-') ~ 'x.txt'.removesuffix('.txt')
'ab' * 3 ~ [1] * 2 ~ (0 * 'x')
[1] + [2] ~ (1,) + (2,)
[1] + (2,)
'a' + 1
n is odd and not n is even and n is divisibleby 7 and n is divisibleby(7)
n is number and n is integer and f is float and t is boolean and t is number and not t is integer
s is string and d is mapping and list is iterable and list is sequence and s is sequence and s is iterable and not n is iterable
missing is undefined and n is defined and nothing is none and t is true and z is not true and false is false
range is callable and not n is callable and missing is callable
'A' is upper and 'a' is lower and 1 is eq 1 and 1 is ne(2) and 1 is lt 2 and 3 is ge(3) and 'a' is in 'abc' and 2 is in [1, 2]
missing is sequence ~ missing is mapping ~ missing is iterable
d.items() is sequence ~ d.items() is iterable ~ range(3) is sequence
(list | map('string')) is iterable ~ (list | map('string')) is sequence
n is unknown_test
n | unknown_filter
'x' if false and (n | unknown_filter) else 'y'
list | sort ~ words | sort ~ words | sort(case_sensitive=true) ~ list | sort(reverse=true)
messages | sort(attribute='role') | map(attribute='role') | join(',')
[1, 'a'] | sort
d | dictsort ~ d | dictsort(true)
{'a': 2, 'b': 1} | dictsort(by='value') ~ {'a': 2, 'b': 1} | dictsort(false, 'value', true)
list | first ~ list | last ~ ([] | first) ~ (s | first) ~ (u | last)
list | min ~ list | max ~ list | sum ~ words | max ~ ([] | max)
[1.5, 2] | sum ~ messages | map(attribute='content') | map('length') | sum
list | join ~ list | join('-') ~ messages | join('/', attribute='role') ~ [none, true, 1.5] | join(',')
list | reverse | list ~ (s | reverse)
(list | reverse) is sequence
['a', 'A', 'b', 'a'] | unique | list ~ ['a', 'A'] | unique(true) | list
messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list
messages | rejectattr('role', 'in', ['system', 'user']) | list | length
messages | selectattr('content') | list | length
list | select('odd') | list ~ list | reject('gt', 1) | list ~ [0, 1, '', none] | select | list
messages | map(attribute='name', default='none') | join(',')
words | map('upper') | join ~ list | map('string') | list ~ [[1, 2], [3]] | map(attribute=0) | list
messages | map(attribute='content.0') | list
messages | selectattr('role', 'equalto', 'nobody') | list
'yes' if messages | selectattr('role', 'equalto', 'nobody') else 'no'
messages | selectattr('role') | length
(messages | selectattr('role'))[0]
messages | map('nothing') | list
list | batch(2) | list ~ list | batch(2, 0) | list ~ list | slice(2) | list ~ list | slice(2, 'x') | list
s | upper ~ s | lower ~ 'hello world-a (b' | title ~ 'ABC' | capitalize ~ s | trim ~ 'xxaxx' | trim('x')
nothing | trim ~ 5 | upper ~ missing | trim
'a\\nb\\n\\nc' | indent ~ '|' ~ 'a\\nb' | indent(2, true) ~ '|' ~ 'a\\n\\nb' | indent(2, blank=true) ~ '|' ~ 'a\\nb' | indent('> ')
5 | indent
'12' | int ~ ' 12 ' | int ~ 'x' | int ~ 'x' | int(3) ~ '1.9' | int ~ 2.9 | int ~ '0x1f' | int(0, 16) ~ '1_0' | int ~ none | int ~ true | int
'1.5' | float ~ 'x' | float ~ 'x' | float(2.0) ~ 1 | float ~ '1e3' | float ~ 'inf' | float
missing | int
2.5 | round ~ 3.5 | round ~ 1.25 | round(1) ~ 2.675 | round(2) ~ 5 | round ~ 1.21 | round(1, 'ceil') ~ 1.29 | round(1, 'floor')
[1, 2] | string | length
'<a href="x">&\\'' | e ~ '<b>' | escape
'<b>' | safe + '<i>'
('<b>' | safe) ~ '<i>'
'<b>' | safe | upper + '&'
'%s-%s' | format('a', 1)
'a.b.c' | replace('.', '-') ~ 'aaa' | replace('a', 'b', 2) ~ 5 | replace(5, 6)
list | list ~ d | list ~ 'ab' | list ~ (1, 2) | list
d | items | list
5 | length
5 | list
tools | tojson
tools | tojson(indent=2)
tools[0] | tojson(indent=4, sort_keys=true)
{'b': 1, 'a': [1.5, none, true, 'é"\\n\\x01\\x7f']} | tojson(ensure_ascii=true, separators=(',', ':'))
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
[] | tojson ~ {} | tojson ~ [[]] | tojson(indent=1) ~ (1, 2) | tojson
{'a': 1} | tojson(indent='--')
missing | tojson
{(1,): 2} | tojson
range(2) | tojson
1e400 | tojson
range(5) | list ~ range(2, 5) | list ~ range(5, 0, -2) | list ~ range(0) | list
range(3)
range(100001)
dict(a=1, b=2) ~ dict({'a': 1}, a=2) ~ dict([('x', 1)])
dict(1)
namespace(a=1).a ~ namespace({'b': 2}).b ~ namespace(a=1)
namespace(_a=1)
raise_exception('no')
strftime_now('%d %b %Y, %A %H:%M:%S %j %y %B %-d')
strftime_now()
n(1)
s.x
s['x']
s.__class__
__builtins__
[][0] ~ {}['a'] ~ 'x'['y']
1 if
1 +
(1
[1
{1
{1: }
'abc
1..2
a b
1 is
x.1a
a.b.
a[1, 2]
f(x=1, 2)
f(**d, **d)
none.x
none[0]
1 not in list
not 1 in list
- - 1
+1
1 if true else 2 if true else 3
foo.0
words.0 ~ words.0.upper()
{'a': {'b': [10, 20]}}.a.b[1]
"{{ x }}" ~ '{% y %}'
"a" ~ {"x": "}}"}.x
""".strip().split("\n")

TEMPLATES = [
    # white space
    "a {% if t %} b {% endif %} c", "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a\n\n{%- if t -%}\n\n b \n{%- endif -%}\n\nc",
    "a \n{{- 'x' -}}\n b", "  {% if t %}x{% endif %}\n  {{ 1 }}\n", "  {%+ if t %}\n x{%+ endif +%}\n\ny", "a{# c #}\nb", "a\n  {# c #}\n b",
    "a {#- c -#} b", "a{#+ c +#}\nb", "x\n", "x\n\n", "\n", "", "x\r\ny\rz\r\n", "{% raw %} {{ x }} {% if %} {% endraw %}!", "a\n {%- raw -%} \n {{ x }} \n {%- endraw -%} \n b",
    "  {% raw %}\n  x\n  {% endraw %}\ny", "{% set x = 1 %}\n{% set y = 2 %}\n{{ x }}{{ y }}\n", "\t {% set x = 1 %} \n{{ x }}", "{%- set x = 1 -%}  \u00a0\n{{ x }}", "{{ 1 -}}\n\n{{- 2 }}", "{{+ 1 }}",
    "a\x0b {%- if t %}b{% endif %}", "{% if t: %}x{% endif %}", "{% if t %}\n\n\nx{% endif %}", "{{ '\n' }}|", "}} %} #}", "{", "{ {", "{{ '}}' }}", "{{ 1", "{% if t", "{% endraw %}",
    # if
    "{% if z %}a{% elif n %}b{% else %}c{% endif %}", "{% if z %}a{% elif nothing %}b{% else %}c{% endif %}", "{% if missing.x %}a{% endif %}", "{% if t %}a", "{% endif %}", "{% if %}{% endif %}", "{% if t %}{% else %}{% else %}{% endif %}",
    "{% if t %}{% endfor %}{% endif %}", "{% if n == 7 and d.b == 2 or missing.x %}y{% endif %}",
    # for
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}|{{ m.role }}\n{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}>{{ m.role }}>{{ loop.nextitem.role if loop.nextitem is defined }};{% endfor %}",
    "{% for x in [] %}a{% else %}b{% endfor %}", "{% for x in list %}{{ x }}{% else %}b{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}", "{% for x in nothing %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}{% for k, v in d | dictsort %}{{ k }}{% endfor %}", "{% for c in u %}{{ c }}.{% endfor %}", "{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}-{{ b }} {% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for x in list if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% else %}none{% endfor %}",
    "{% for x in list if x > 9 %}{{ x }}{% else %}none{% endfor %}", "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in list %}{% break %}{% else %}e{% endfor %}",
    "{% break %}", "{% for x in list %}{% for y in list %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for x in list %}{% set outer = loop %}{% for y in [1] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{{ loop }}", "{% for x in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% set x = 1 %}{% for y in list %}{{ x }}{% set x = y %}{{ x }}{% endfor %}{{ x }}", "{% for x in list %}{% set q = x %}{% endfor %}{{ q }}", "{% for x in list %}{{ q }}{% set q = x %}{% endfor %}", "{% set ns = namespace(found=false) %}{% for x in list if not ns.found %}{{ x }}{% set ns.found = x == 1 %}{% endfor %}",
    "{% set g = list | map('string') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% endfor %}", "{% for x in range(3) %}{{ loop.last }}{% endfor %}", "{% for x in list | select('odd') %}{{ loop.last }}{{ loop.length }}{% endfor %}", "{% for loop in list %}{% endfor %}", "{% for 1 in list %}{% endfor %}", "{% for x of list %}{% endfor %}",
    "{% for x in list %}{% endif %}", "{% for x in list %}{{ super }}{% endfor %}", "{% for i in range(2) %}{{ i }}{% else %}{% break %}{% endfor %}",
    # set
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = b = 1 %}", "{% set a, b = 1 %}", "{% set (a, b) = (1, 2) %}{{ a }}", "{% set x %}a {{ n }} b{% endset %}[{{ x }}]", "{% set x | upper | trim %} a {% endset %}[{{ x }}]", "{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set messages.x = 1 %}", "{% set ns.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set none = 1 %}", "{% set 1 = 2 %}", "{% set x.y.z = 1 %}", "{% set x %}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}", "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% if t %}{% set n = 1 %}{% endif %}{{ n }}", "{% if z %}{% set n = 1 %}{% endif %}{{ n }}", "{{ n }}{% set n = 1 %}{{ n }}", "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}{% set n = 1 %}{{ m() }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a }}", "{% with %}{% set n = 1 %}{{ n }}{% endwith %}{{ n }}", "{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}", "{% set x = [1, 2][0] if t %}{{ x }}",
    "{% filter upper %}a{{ u }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}a c{% endfilter %}", "{% filter indent(2, true) %}a\nb{% endfilter %}",
    # macros
    "{% macro m(a, b='x', c=n) %}[{{ a }}|{{ b }}|{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2, 3) }}{{ m(b=5, a=4) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(q=2) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(x) %}{{ x }}{% if x > 0 %}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{% endcall %}", "{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{{ n }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}in{% endcall %}", "{% call 1 %}{% endcall %}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(2) }}{{ inner(3) }}{% endmacro %}{{ outer(1) }}{{ inner }}", "{% macro m(a) %}{% set a = 5 %}{{ a }}{% endmacro %}{{ m(1) }}{{ a }}", "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro m(x) %}  {{ x }}\n{% endmacro %}{{ m('a') }}{{ m('b') | trim }}", "{% macro m(items) %}{% for i in items %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}{% endmacro %}{{ m(list) }}", "{% macro m() %}{% break %}{% endmacro %}", "{% for x in list %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ list | map('string') | map('upper') | join }}{{ m.name }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(*[5], **{'b': 6}) }}", "{% macro m(p) %}{% if p %}{{ p[0] }}{{ m(p[1:]) }}{% endif %}{% endmacro %}{{ m('abc') }}",
    # what is not for chat templates
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% from 'x' import y %}", "{% do x %}", "{% unknown %}", "{% endmacro %}", "{%  %}",
    # generation
    "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% set q = 1 %}{% endgeneration %}{{ q }}\n{% endfor %}", "{% generation %}{% break %}{% endgeneration %}",
    # forms that published templates have, in words of our own
    "{%- for m in messages[::-1] %}{% set index = (messages | length - 1) - loop.index0 %}{{ index }}{{ m.role }}{% endfor %}",
    "{%- set ns = namespace(last=messages | length - 1, open=true) %}{%- for m in messages[::-1] %}{%- set i = messages | length - 1 - loop.index0 %}{%- if ns.open and m.role == 'user' and m.content is string and not (m.content.startswith('<r>') and m.content.endswith('</r>')) %}{%- set ns.open = false %}{%- set ns.last = i %}{%- endif %}{%- endfor %}{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set c = m.content %}{%- set r = '' %}{%- if m.reasoning is string %}{%- set r = m.reasoning %}{%- elif '</think>' in c %}{%- set r = c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set c = c.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{%- if loop.index0 > ns.last and (loop.last or r) %}{{- '<|a|>' + '<think>\\n' + r.strip('\\n') + '</think>' + c }}{%- else %}{{- '<|a|>' + c }}{%- endif %}{%- else %}{{- '<|' + m.role + '|>' + m.content + '\\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|a|>\\n' }}{%- endif %}",
    "{%- if messages[0].role == 'system' %}{%- set sys = messages[0].content | trim %}{%- set rest = messages[1:] %}{%- else %}{%- set sys = '' %}{%- set rest = messages %}{%- endif %}{{ sys }}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must take turns') }}{% endif %}[{{ m['content'] | trim }}]{% endfor %}",
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}{{ date_string }}{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools is none }}",
    "{%- for tool in tools %}{%- set f = tool.function %}{{- f.name ~ ': ' ~ f.description }}{%- for name, p in f.parameters.properties | items %}\n- {{ name }} ({{ p.type | upper }}){% if name in f.parameters.required %}!{% endif %}{%- endfor %}{{ tool | tojson(indent=4) }}{%- endfor %}",
    "{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}{{ users | length }}{{ users[-1].content }}{{ (messages | rejectattr('role', 'equalto', 'system') | first).role }}",
    "{% macro part(c) %}{% if c is string %}{{ c }}{% elif c is iterable and c is not mapping %}{% for p in c %}{{ p.text if p.type == 'text' else '[' ~ p.type ~ ']' }}{% endfor %}{% endif %}{% endmacro %}{{ part('a') }}{{ part([{'type': 'text', 'text': 'b'}, {'type': 'image'}]) }}{{ part(none) }}",
    "{% for m in messages %}{% if loop.previtem and loop.previtem.role == m.role %}again{% endif %}{{ '\\n' if not loop.first }}{{ m.role }}{% endfor %}",
]


def cases():
    for expression in EXPRESSIONS:
        yield {"template": "{{ " + expression.replace("\\\\", "\\") + " }}"}
    for template in TEMPLATES:
        yield {"template": template.replace("\\\\", "\\")}
