"""Modules of dataclasses, written by rule: what the pair of `specdec demo` learns to continue.

A module begins with a list of its classes and their fields, so that a continuation has something to go by.
"""

from __future__ import annotations

import random

# What a module is about: the kinds of thing it keeps, each with fields that suit it.
TOPICS = {
    "library": {
        "Book": "title:str author:str year:int pages:int isbn:str",
        "Member": "name:str email:str city:str joined:date",
        "Loan": "book:str member:str due:date returned:bool",
        "Author": "name:str country:str born:int",
        "Shelf": "room:str number:int capacity:int",
    },
    "shop": {
        "Customer": "name:str email:str street:str city:str",
        "Product": "name:str price:float stock:int weight:float",
        "Order": "number:int customer:str total:float paid:bool",
        "Supplier": "name:str email:str country:str",
        "Discount": "code:str percent:float expires:date",
    },
    "school": {
        "Student": "name:str email:str birthday:date grade:int",
        "Teacher": "name:str subject:str room:str email:str",
        "Course": "title:str teacher:str hours:int credits:int",
        "Exam": "course:str date:date room:str minutes:int",
        "Grade": "student:str course:str points:float passed:bool",
    },
    "hospital": {
        "Patient": "name:str birthday:date phone:str city:str",
        "Doctor": "name:str subject:str phone:str room:str",
        "Visit": "patient:str doctor:str date:date minutes:int",
        "Room": "number:str floor:int beds:int",
        "Bill": "patient:str total:float due:date paid:bool",
    },
    "garage": {
        "Car": "model:str year:int color:str price:float",
        "Owner": "name:str phone:str city:str",
        "Repair": "car:str hours:float price:float done:bool",
        "Part": "name:str number:int price:float stock:int",
        "Mechanic": "name:str phone:str hours:float",
    },
    "cinema": {
        "Film": "title:str director:str year:int minutes:int",
        "Ticket": "film:str seat:str price:float paid:bool",
        "Hall": "name:str floor:int seats:int",
        "Show": "film:str hall:str date:date hour:int",
        "Actor": "name:str country:str born:int",
    },
    "airport": {
        "Flight": "number:str origin:str destination:str minutes:int",
        "Passenger": "name:str email:str passport:str",
        "Plane": "model:str seats:int year:int",
        "Gate": "name:str floor:int open:bool",
        "Booking": "flight:str passenger:str seat:str price:float",
    },
    "kitchen": {
        "Recipe": "title:str minutes:int servings:int rating:float",
        "Ingredient": "name:str weight:float unit:str price:float",
        "Meal": "recipe:str date:date guests:int",
        "Chef": "name:str country:str phone:str",
        "Menu": "title:str date:date price:float",
    },
    "music store": {
        "Album": "title:str artist:str year:int price:float",
        "Song": "title:str artist:str seconds:int rating:float",
        "Artist": "name:str country:str born:int",
        "Playlist": "title:str owner:str public:bool",
        "Concert": "artist:str city:str date:date price:float",
    },
    "hotel": {
        "Guest": "name:str email:str phone:str country:str",
        "Room": "number:str floor:int beds:int price:float",
        "Booking": "guest:str room:str date:date nights:int",
        "Invoice": "guest:str total:float due:date paid:bool",
        "Employee": "name:str email:str salary:float",
    },
    "office": {
        "Employee": "name:str email:str salary:float city:str",
        "Project": "title:str owner:str budget:float due:date",
        "Task": "title:str project:str hours:float done:bool",
        "Meeting": "title:str room:str date:date minutes:int",
        "Client": "name:str email:str phone:str country:str",
    },
    "bank": {
        "Account": "number:str owner:str balance:float open:bool",
        "Customer": "name:str email:str birthday:date city:str",
        "Payment": "number:int account:str amount:float date:date",
        "Card": "number:str owner:str expires:date",
        "Branch": "name:str street:str city:str phone:str",
    },
    "garden": {
        "Plant": "name:str color:str height:float planted:date",
        "Bed": "name:str length:float width:float",
        "Harvest": "plant:str date:date weight:float",
        "Tool": "name:str price:float weight:float",
        "Gardener": "name:str phone:str hours:float",
    },
    "weather service": {
        "Station": "name:str city:str height:float",
        "Reading": "station:str date:date temperature:float wind:float",
        "Warning": "city:str title:str expires:date",
        "Forecast": "city:str date:date temperature:float rain:float",
        "Sensor": "name:str model:str unit:str",
    },
}
_AN = ("A", "E", "I", "O", "U")
_DATE = "date.fromisoformat({})"


def article(name: str) -> str:
    """`An actor`."""
    return f"{'An' if name[0] in _AN else 'A'} {name.lower()}"


def record(topic: str, name: str, fields: list[list[str]]) -> str:
    """One class. fields: name and type each."""
    lines = ["@dataclass", f"class {name}:", f'    """{article(name)} of the {topic}."""', ""]
    lines += [f"    {field}: {kind}" for field, kind in fields]
    lines += [
        "",
        "    def to_dict(self):",
        f'        """Return the {name.lower()} as a dictionary."""',
        "        return {",
    ]
    lines += [f'            "{f}": self.{f}{".isoformat()" if k == "date" else ""},' for f, k in fields]
    lines += ["        }", "", "    @classmethod", "    def from_dict(cls, data):"]
    lines += [f'        """Make {article(name).lower()} from a dictionary."""', "        return cls("]
    for field, kind in fields:
        value = f'data["{field}"]'
        value = _DATE.format(value) if kind == "date" else value if kind == "str" else f"{kind}({value})"
        lines.append(f"            {field}={value},")
    lines += ["        )", "", "    def __str__(self):"]
    lines.append(f'        return f"{name}(' + ", ".join(f"{f}={{self.{f}}}" for f, _ in fields) + ')"')
    return "\n".join(lines) + "\n"


def module(rng: random.Random) -> str:
    """A module of two to four classes, each with some of the fields that suit it."""
    topic = rng.choice(sorted(TOPICS))
    kinds = TOPICS[topic]
    names = rng.sample(sorted(kinds), rng.randint(2, 4))
    classes, wanted = [], []
    for name in names:
        fields = [field.split(":") for field in kinds[name].split()]
        if len(fields) > 3 and rng.random() < 0.5:
            fields.remove(rng.choice(fields))
        if rng.random() < 0.3:
            rng.shuffle(fields)
        wanted.append(f"{name}: {', '.join(field for field, _ in fields)}")
        classes.append(record(topic, name, fields))
    head = f'"""The records of a {topic}.\n\n' + "\n".join(wanted) + '\n"""\n\n'
    return head + "from dataclasses import dataclass\nfrom datetime import date\n\n\n" + "\n\n".join(classes)
